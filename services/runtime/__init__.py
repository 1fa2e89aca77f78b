"""What every stage stands on: settings, the bus and its consume discipline, projections, telemetry, brokers."""
