"""Every setting, once: name, type, default, meaning. Environment over TOML over defaults.

A field ``kafka_bootstrap`` is ``KVROUTE_KAFKA_BOOTSTRAP`` in the environment and ``bootstrap`` under ``[kafka]``
(or ``kafka_bootstrap`` at the top) in the TOML file. The documentation table is generated from here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Csv = Annotated[tuple[str, ...], "comma separated in the environment"]
LayoutPath = Literal["native", "processor", "render"]


class Settings(BaseModel):
    """All settings. Frozen: what a process started with is what it runs with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Kafka
    kafka_bootstrap: str = Field(default="127.0.0.1:9092", description="bootstrap servers, comma separated")
    kafka_profile: Literal["kafka", "embedded"] = Field(
        default="kafka", description="embedded: for the Tansu broker (short fetch waits, no idempotent producer)"
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    kafka_sasl_username: str | None = None
    kafka_sasl_password: SecretStr | None = None
    kafka_ssl_ca: Path | None = Field(default=None, description="PEM file of the certificate authority")
    kafka_ssl_cert: Path | None = Field(default=None, description="PEM file of the client certificate")
    kafka_ssl_key: Path | None = Field(default=None, description="PEM file of the client key")
    kafka_replication: int = Field(default=1, ge=1, description="replication factor of topics that are created")
    kafka_partitions: int | None = Field(default=None, ge=1, description="overrides 12 in the topic table")
    kafka_compression: Literal["none", "lz4", "gzip", "zstd"] = "none"
    topic_prefix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
        description="put before every topic and consumer group on the broker: several fleets on one cluster",
    )
    kafka_home: Path | None = Field(default=None, description="Kafka folder: start that broker, not Tansu")

    # Database
    database_url: SecretStr | None = Field(
        default=None, description="SQLAlchemy URL of the audit store; default data_dir/audit.sqlite3"
    )
    database_ssl: Literal["disable", "prefer", "require", "verify-full"] = "prefer"
    database_ssl_ca: Path | None = None
    audit_linger_seconds: float = Field(
        default=0.05, ge=0, le=5, description="how long a record waits for others to share its transaction"
    )
    audit_batch: int = Field(default=200, ge=1, description="records a transaction at the most")
    audit_retention_days: int = Field(default=30, ge=1)

    # Common
    data_dir: Path = Field(default=Path(".kvroute"), description="claim checks, embedded broker and SQLite files")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"
    instance: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,64}$", description="default: host and pid")
    health_host: str = "127.0.0.1"
    health_port: int = Field(
        default=0, ge=0, le=65535, description="/healthz /readyz /metrics of a stage; 0: no server"
    )
    concurrency: int = Field(default=64, ge=1, description="records a stage handles at once")
    stop_after_failures: int = Field(default=20, ge=1, description="own failures in a row after which a stage stops")
    drain_seconds: float = Field(
        default=20.0, ge=0, description="how long records in flight may finish after SIGTERM"
    )
    retries: int = Field(default=5, ge=0, description="tries of a record that failed for a cause that may heal")

    # Gateway
    gateway_host: str = "127.0.0.1"
    gateway_port: int = Field(default=8000, ge=0, le=65535)
    gateway_max_body_bytes: int = Field(default=16 << 20, ge=1024)
    gateway_max_in_flight: int = Field(default=512, ge=1, description="requests at once; more get 429")
    gateway_api_keys: SecretStr | None = Field(
        default=None, description="key=tenant pairs, comma separated, or @FILE; unset: no keys, no tenants"
    )
    deadline_seconds: float = Field(default=120.0, gt=0, le=600)

    # Media
    identity: Literal["url", "content", "validated"] = Field(default="url", description="default media identity mode")
    identity_by_model: dict[str, str] = Field(default_factory=dict, description="model=mode pairs, over the default")
    identity_key: SecretStr | None = Field(default=None, description="keys scoped identities with BLAKE2b")
    identity_drop_params: dict[str, str] = Field(
        default_factory=dict,
        description="host=param+param: query parameters left out of url identity (needs a tenant); host may be "
        "*.domain, a param may be @s3, @gcs, @azure or @cloudfront",
    )
    media_forward: Literal["url", "bytes"] = Field(default="url", description="bytes: the engine never fetches")
    media_trust_uuid: bool = Field(default=False, description="accept the clients' uuid as identity, per tenant")
    media_allow_private: bool = Field(default=False, description="allow private addresses: only for tests and demos")
    media_allow_hosts: Csv = Field(default=(), description="if set, only these hosts are fetched")
    media_deny_hosts: Csv = Field(default=(), description="hosts never fetched")
    media_max_bytes: int = Field(default=32 << 20, ge=1024, description="of one medium, received")
    media_max_pixels: int = Field(
        default=89_000_000, ge=1024, le=178_956_970, description="of one image; engines refuse above the highest value"
    )
    media_max_items: int = Field(default=64, ge=1, description="media in one request")
    media_fetch_seconds: float = Field(default=10.0, gt=0)
    media_max_redirects: int = Field(default=3, ge=0)
    media_per_host: int = Field(default=16, ge=1, description="fetches at once from one host")
    media_memory_bytes: int = Field(default=512 << 20, ge=1 << 20, description="of all media held at once")
    media_size_cache: int = Field(default=10_000, ge=0, description="URLs whose image size is remembered")
    media_size_cache_seconds: float = Field(default=3600.0, ge=0)
    media_identity_cache: int = Field(
        default=10_000, ge=0, description="URLs whose decoded identity is remembered while their server confirms it"
    )
    media_identity_cache_seconds: float = Field(
        default=3600.0, ge=0, description="at most; never beyond an eighth of the claims' time to live"
    )
    media_decode_processes: int = Field(default=1, ge=0, description="0: decode in threads")
    media_decode_videos: bool = Field(default=True, description="false: videos are routed by the text before them")
    video_num_frames: int = Field(default=32, ge=1, description="frames taken of a video, by families that look at it")
    video_num_frames_by_model: dict[str, int] = Field(
        default_factory=dict, description="model=frames pairs: num_frames of the engine's --media-io-kwargs"
    )
    video_fps_by_model: dict[str, float] = Field(
        default_factory=dict, description="model=frames a second pairs: fps of the engine's --media-io-kwargs"
    )
    video_max_pixels: int = Field(
        default=4_000_000_000, ge=1024, description="of all frames of one video together, decoded"
    )
    video_decode_seconds: float = Field(default=30.0, gt=0, description="decoding of one video")
    video_forward_frames: Csv = Field(
        default=(),
        description="models whose engines get a video as the very frames that were hashed, without loss; engines need "
        "--trust-request-mm-kwargs, others get the video itself",
    )
    video_frames_max_bytes: int = Field(
        default=32 << 20, ge=1024, description="of the frames of one video, as PNG; one with more travels itself"
    )
    blob_url: str | None = Field(default=None, description="claim check store; default data_dir/blobs; s3://bucket/prefix")
    blob_inline_bytes: int = Field(default=64 << 10, ge=0, description="media above are claim-checked")
    blob_body_bytes: int = Field(default=256 << 10, ge=1024, description="bodies above are claim-checked")
    blob_ttl_seconds: int = Field(default=26 * 3600, ge=60)

    # Layout
    layout: LayoutPath = Field(
        default="native",
        description="what lays out prompts: native (known families), processor (the model's own, by transformers) or "
        "render (asked from an engine); the same for layout and agents",
    )
    layout_by_model: dict[str, LayoutPath] = Field(
        default_factory=dict, description="model=path pairs, over the default"
    )
    models: dict[str, str] = Field(default_factory=dict, description="served model name=model folder pairs")
    models_dir: Path | None = Field(default=None, description="each subfolder is a model, served under its name")
    block_sizes: tuple[int, ...] = Field(default=(), description="expected block sizes; default: what workers report")
    layout_cache_tokens: int = Field(default=8_000_000, ge=0, description="tokens of text pieces kept tokenised")
    layout_require_contract: bool = Field(default=True, description="false: media are exact without a proven contract")
    processor_processes: int = Field(default=1, ge=1, description="processes that models' processors run in")
    processor_seconds: float = Field(default=20.0, gt=0, description="for one medium; then the process is ended")
    processor_memory_bytes: int = Field(default=4 << 30, ge=256 << 20, description="of one process")
    processor_cache: int = Field(default=10_000, ge=1, description="sizes of media whose layout is remembered")
    render_url: str | None = Field(
        default=None, description="of the engine that is asked for renderings; default: the model's live workers"
    )
    render_seconds: float = Field(default=10.0, gt=0, description="for one rendering")
    render_concurrency: int = Field(default=16, ge=1, description="renderings asked for at once")
    render_handover_bytes: int = Field(
        default=0,
        ge=0,
        description="renderings with their processed media, kept in this host's memory for its agents with "
        "worker_render_generate, all together; 0: none",
    )
    render_handover_seconds: float = Field(default=30.0, gt=0, description="how long one is kept")
    render_handover_dir: Path | None = Field(
        default=None, description="a folder in memory; default /dev/shm/kvroute-USERID; the same for layout and agents"
    )

    # Router
    policy: str = "kv"
    policy_overlap_credit: float = Field(default=1.0, ge=0)
    policy_prefill_scale: float = Field(default=1.0, ge=0)
    policy_request_weight: float = Field(default=0.0, ge=0)
    policy_temperature: float = Field(default=0.0, ge=0)
    policy_vision_weight: float = Field(default=1.0, ge=0, description="prefill tokens one vision token counts as")
    policy_encoder_credit: float = Field(
        default=1.0, ge=0, le=1, description="part of a medium's vision work taken off where its encoder output is held"
    )
    router_max_attempts: int = Field(default=3, ge=1)
    router_busy_kv_usage: float = Field(default=1.0, gt=0, description="slots above this reported usage are not chosen")
    router_busy_waiting: int = Field(default=1_000_000, ge=0, description="slots with more waiting are not chosen")
    lease_seconds: float = Field(default=6.0, gt=0)
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    snapshot_seconds: float = Field(default=600.0, gt=0)

    # Agent
    worker_id: str | None = Field(default=None, pattern=r"^[a-z0-9-]{1,64}$")
    worker_engine: Literal["vllm", "sglang", "trtllm"] = "vllm"
    worker_engine_url: str = "http://127.0.0.1:8100"
    worker_events: str | None = Field(default=None, description="ZMQ endpoint; default: asked from the engine")
    worker_replay: str | None = Field(default=None, description="ZMQ replay endpoint; default: asked from the engine")
    worker_render_generate: bool = Field(
        default=False,
        description="chats with media reach vLLM (--enable-scale-out) rendered, under our identities: render_url or "
        "the engine renders, the engine generates",
    )
    worker_advertised_url: str | None = Field(
        default=None,
        description="the engine as other hosts reach it, told to the layout stage where engines render; default: "
        "worker_engine_url",
    )
    worker_model_dir: Path | None = Field(default=None, description="model folder for the probes; default: models")
    worker_video_pruning: tuple[float, ...] = Field(
        default=(), description="values of --video-pruning-rate the engine may run with; probing says which"
    )
    worker_media_bytes: int = Field(
        default=1 << 30, ge=1 << 20,
        description="of claimed media that requests on their way to the engine hold at once; others wait",
    )  # fmt: skip
    worker_encoder_tokens: int = Field(
        default=0,
        ge=0,
        description="media tokens vLLM's encoder cache takes at least (its --max-num-batched-tokens), if all its "
        "requests come through this agent; 0: no encoder credit",
    )
    worker_max_concurrency: int = Field(default=256, ge=1)
