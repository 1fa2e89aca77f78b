"""The domain words, pure: block addresses, media identities, tiers. Imports no broker, database, HTTP or clock."""
