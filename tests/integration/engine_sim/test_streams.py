"""KV events over ZMQ: the live stream, replay, lost batches, ranks, restarts, ports."""

from __future__ import annotations

import msgspec
import pytest
import zmq
import zmq.asyncio

from services.engine_sim.config import SimConfig
from services.engine_sim.server import SimEngine
from services.layout.layouter import Layouter
from tests.integration.engine_sim.conftest import MODEL, Client, StartEngine
from tests.integration.engine_sim.replay import replayed


class Subscriber:
    """A SUB socket that reads what an engine publishes."""

    def __init__(self) -> None:
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")

    async def __aenter__(self) -> Subscriber:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.socket.close(linger=0)
        self.context.term()

    async def joined(self, client: Client) -> int:
        """Subscribe, then ask until the first batch comes: what came before the subscription is lost to a SUB.

        Returns the next sequence number.
        """
        self.socket.connect(client.engine.events_endpoint)
        for salt in range(1000):
            await client.chat("a prompt of some twenty tokens, whatever they are", cache_salt=f"s{salt}")
            if await self.socket.poll(20):
                break
        while await self.socket.poll(200):
            _, sequence, _ = await self.socket.recv_multipart()
        return int.from_bytes(sequence, "big") + 1


async def test_batches_come_live_as_three_frames(start: StartEngine) -> None:
    client = await start(topic="kv@w0")
    async with Subscriber() as subscriber:
        sequence = await subscriber.joined(client)
        await client.chat("another prompt of some twenty tokens, more or less", X_Session_ID="s-1")
        topic, number, payload = await subscriber.socket.recv_multipart()
    assert (topic, int.from_bytes(number, "big")) == (b"kv@w0", sequence)
    ts, ((event),), rank = msgspec.msgpack.decode(payload)
    assert event["type"] == "BlockStored"
    assert event["session_id"] == "s-1"
    assert (rank, ts > 1.7e9) == (0, True)


async def test_events_say_no_session_before_0_30(start: StartEngine) -> None:
    client = await start(version="0.29.1")
    async with Subscriber() as subscriber:
        await subscriber.joined(client)
        await client.chat("another prompt of some twenty tokens, more or less", X_Session_ID="s-1")
        _, _, payload = await subscriber.socket.recv_multipart()
    (event,) = msgspec.msgpack.decode(payload)[1]
    assert "session_id" not in event
    assert (await client.get("/version")).body == {"version": "0.29.1"}


async def test_lost_batches_leave_a_gap_that_replay_fills(start: StartEngine) -> None:
    client = await start()
    async with Subscriber() as subscriber:
        sequence = await subscriber.joined(client)
        assert (await client.post("/sim/skip_batches", {"batches": 2})).body == {"success": True}
        for salt in ("a", "b", "c"):
            await client.chat("a prompt of some twenty tokens, whatever they are", cache_salt=salt)
        _, number, _ = await subscriber.socket.recv_multipart()
    assert int.from_bytes(number, "big") == sequence + 2
    missed = await replayed(client.engine.replay_endpoint, sequence)
    assert [number for number, _ in missed] == [sequence, sequence + 1, sequence + 2]


async def test_replay_ignores_what_is_no_request(client: Client) -> None:
    await client.chat("a prompt of some twenty tokens, whatever they are")
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(client.engine.replay_endpoint)
        await dealer.send_multipart([b"nonsense"])
        await dealer.send_multipart([b"", b"1", b"2", b"3"])
        await dealer.send_multipart([b"", (0).to_bytes(8, "big")])
        assert [await dealer.recv_multipart() for _ in range(2)][1] == [b"", b"", b"\xff" * 8, b""]


async def test_sources_are_told_by_rank_on_neighbouring_ports(start: StartEngine) -> None:
    client = await start(data_parallel_size=2)
    port = client.engine.config.zmq_port
    sources = (await client.get("/kv_event_sources")).body
    assert [sources[rank]["endpoint"] for rank in "01"] == [f"tcp://*:{port}", f"tcp://*:{port + 1}"]
    assert [sources[rank]["replay_endpoint"] for rank in "01"] == [f"tcp://*:{port + 2}", f"tcp://*:{port + 3}"]
    assert sources["0"]["buffer_steps"] == 10_000


async def test_a_header_picks_the_rank_and_ranks_share_no_cache(start: StartEngine) -> None:
    client = await start(data_parallel_size=2)
    prompt = "a prompt of some twenty tokens, whatever they are"
    cached = [
        (await client.chat(prompt, X_data_parallel_rank=rank)).body["usage"]["prompt_tokens_details"]["cached_tokens"]
        for rank in "0110"
    ]
    assert [bool(tokens) for tokens in cached] == [False, False, True, True]
    port = client.engine.config.zmq_port
    for rank in (0, 1):
        ((_, payload),) = await replayed(f"tcp://127.0.0.1:{port + 2 + rank}", 0)
        assert msgspec.msgpack.decode(payload)[2] == rank
    refused = await client.chat(prompt, X_data_parallel_rank="2")
    assert (refused.status, refused.message) == (400, "data_parallel_rank 2 is out of range [0, 2).")


async def test_idle_ranks_take_turns(start: StartEngine) -> None:
    client = await start(data_parallel_size=2)
    for _ in range(4):
        await client.chat()
    assert [core.prompt_tokens > 0 for core in client.engine.backend.cores] == [True, True]


async def test_a_restarted_engine_counts_from_zero_on_its_ports(layouter: Layouter, start: StartEngine) -> None:
    client = await start()
    await client.chat("a prompt of some twenty tokens, whatever they are")
    config = client.engine.config
    await client.engine.stop()
    client.engine = SimEngine(config, layouter=layouter)
    async with client.engine:
        assert await replayed(client.engine.replay_endpoint, 0) == []
        await client.chat("a prompt of some twenty tokens, whatever they are")
        assert [number for number, _ in await replayed(client.engine.replay_endpoint, 0)] == [0]
        assert client.engine.config == config


async def test_a_taken_port_is_an_error_and_leaves_nothing_open(layouter: Layouter, client: Client) -> None:
    taken = client.engine.config
    for config in (
        SimConfig(MODEL, served_name="m", zmq_port=taken.zmq_port),
        SimConfig(MODEL, served_name="m", http_port=taken.http_port),
    ):
        engine = SimEngine(config, layouter=layouter)
        with pytest.raises((zmq.ZMQError, OSError)):
            await engine.start()
        with pytest.raises(RuntimeError, match="not started"):
            _ = engine.backend


async def test_an_endpoint_without_a_wildcard_is_connected_to(start: StartEngine) -> None:
    async with Subscriber() as subscriber:
        port = subscriber.socket.bind_to_random_port("tcp://127.0.0.1")
        client = await start(events_endpoint=f"tcp://127.0.0.1:{port}")
        for salt in range(1000):
            await client.chat("a prompt of some twenty tokens, whatever they are", cache_salt=f"s{salt}")
            if await subscriber.socket.poll(20):
                break
        assert len(await subscriber.socket.recv_multipart()) == 3


async def test_engines_with_other_seeds_name_the_same_prefix_differently(start: StartEngine) -> None:
    hashes = []
    for seed in (1, 2):
        client = await start(seed=seed)
        await client.chat("a prompt of some twenty tokens, whatever they are")
        ((_, payload),) = await replayed(client.engine.replay_endpoint, 0)
        hashes.append(msgspec.msgpack.decode(payload)[1][0]["block_hashes"])
    assert not set(hashes[0]) & set(hashes[1])


async def test_an_engine_that_does_not_come_up_leaves_its_ports_free(layouter: Layouter) -> None:
    engine = SimEngine(SimConfig(MODEL, served_name="m", num_blocks=1), layouter=layouter)
    with pytest.raises(ValueError, match="num_blocks is 1"):
        await engine.start()
    async with SimEngine(SimConfig(MODEL, served_name="m", zmq_port=engine.config.zmq_port), layouter=layouter):
        pass
