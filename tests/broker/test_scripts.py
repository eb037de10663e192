"""Every branch of each script, by plain EVAL, as a worker in another language calls it, on every kind of store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from broker.errors import StoreError
from broker.redis import Store
from tests.broker.registry import Registry, delta

LIMITS = "1048576 100000 67108864 86400000 604800000 1000"


@pytest.fixture
def registry(store: Store) -> Registry:
    return Registry(store)


def flat(items: Sequence[tuple[str, bytes]]) -> list[Any]:
    return [part for item in items for part in item]


async def create(registry: Registry, run_id: str, limits: str = LIMITS, lost: str = "fail") -> Any:
    return await registry.script("create", run_id, run_id, '{"input":{"message":"m"}}', "s1", "p1", lost, limits, "q")


async def claimed(registry: Registry, limits: str = LIMITS, lost: str = "fail", run_id: str = "r") -> None:
    assert (await create(registry, run_id, limits, lost))[0] == b"OK"
    assert (await registry.script("claim", run_id, run_id, 1, "me"))[0] == b"OK"


async def append(registry: Registry, first: int, *items: tuple[str, bytes], owner: str = "me", epoch: int = 1) -> Any:
    return await registry.script("append", "r", "r", owner, epoch, first, *flat(items))


async def record(registry: Registry, run_id: str = "r") -> dict[str, str]:
    values = [v.decode() for v in await registry.store.call("HGETALL", registry.keys.run(run_id))]
    return dict(zip(values[::2], values[1::2], strict=True))


async def ttl(registry: Registry, key: bytes) -> int:
    return int(await registry.store.call("PTTL", key))


ITEM = ("message.delta", b'{"ts":1.5,"text":"a"}')
FINAL = ("final", b'{"ts":2,"message":null}')


# create


async def test_create_makes_the_record_and_tells(registry: Registry) -> None:
    status, now, fields = await create(registry, "r")
    made = await record(registry)
    assert status == b"OK"
    assert dict(zip([f.decode() for f in fields[::2]], [f.decode() for f in fields[1::2]], strict=True)) == made
    assert made["status"] == "queued"
    assert made["created"] == made["beat"] == now.decode()
    assert (made["attempt"], made["epoch"], made["first"], made["last"]) == ("1", "1", "1", "0")
    assert await registry.is_live("r")
    runs = registry.keys.runs(registry.keys.partition("r"))
    assert float(await registry.store.call("ZSCORE", runs, "r")) == pytest.approx(float(now))
    assert await registry.news("r") == ["run.created"]


async def test_create_refuses_an_id_that_is_taken(registry: Registry) -> None:
    await create(registry, "r")
    before = await record(registry)
    assert await create(registry, "r") == [b"EXISTS"]
    assert await record(registry) == before


async def test_create_removes_what_an_earlier_run_of_that_id_left(registry: Registry) -> None:
    await registry.store.call("XADD", registry.keys.items("r"), "7-0", "t", "x", "d", "{}")
    await registry.store.call("XADD", registry.keys.control("r"), "*", "t", "cancel", "d", "{}")
    await create(registry, "r")
    assert await registry.stored("r") == []
    assert await registry.store.call("EXISTS", registry.keys.control("r")) == 0


@pytest.mark.parametrize("limits", ["", "1 2 3", "1 2 3 4 5 x", "1 2 3 4 5 6 7"])
async def test_create_refuses_broken_limits(registry: Registry, limits: str) -> None:
    with pytest.raises(StoreError, match="six integers"):
        await create(registry, "r", limits)
    assert await record(registry) == {}


async def test_create_under_an_idempotency_key(registry: Registry) -> None:
    entry = registry.keys.idempotency(registry.keys.partition("r"), "h")

    async def once(run_id: str, digest: str, stale: str = "") -> Any:
        args = (run_id, "{}", "", "", "fail", LIMITS, "q", digest, stale)
        return await registry.script("create", "r", *args, extra_keys=[entry])

    assert (await once("r", "d1"))[0] == b"OK"
    assert await once("r", "d1") == [b"SAME", b"r"]
    assert await once("r", "d2") == [b"CONFLICT", b"r"]
    assert 0 < await ttl(registry, entry) <= 604800000
    await registry.store.call("DEL", registry.keys.run("r"))
    assert await once("r", "d1") == [b"SAME", b"r"]
    assert (await once("r", "d2", "r"))[0] == b"OK"
    assert await once("r", "d1") == [b"CONFLICT", b"r"]


# claim


async def test_claim_is_won_once_and_may_be_repeated_by_the_winner(registry: Registry) -> None:
    await create(registry, "r")
    status, _, fields = await registry.script("claim", "r", "r", 1, "me")
    assert status == b"OK"
    assert fields[1] in (b"running", b"queued") or b"running" in fields
    first = await record(registry)
    assert (first["status"], first["owner"]) == ("running", "me")
    assert first["started"]
    assert await registry.script("claim", "r", "r", 1, "other") == [b"REFUSED", b"claimed"]
    assert (await registry.script("claim", "r", "r", 1, "me"))[0] == b"OK"
    assert await record(registry) == first
    assert await registry.news("r") == ["run.created", "run.started"]


async def test_claim_refuses_what_is_not_to_be_claimed(registry: Registry) -> None:
    assert await registry.script("claim", "r", "r", 1, "me") == [b"REFUSED", b"gone"]
    await create(registry, "r")
    assert await registry.script("claim", "r", "r", 2, "me") == [b"REFUSED", b"attempt"]
    with pytest.raises(StoreError, match="owner"):
        await registry.script("claim", "r", "r", 1, "")
    await registry.script("cancel", "r", "r", '{"code":"cancelled"}')
    assert await registry.script("claim", "r", "r", 1, "me") == [b"REFUSED", b"ended"]


# append


async def test_append_stores_in_order_under_the_seqs(registry: Registry) -> None:
    await claimed(registry)
    before = await record(registry)
    assert await append(registry, 1, ITEM, ("tool.started", b'{"ts":1,"call_id":"c","name":"n"}')) == [b"OK", 2]
    assert await append(registry, 3, ITEM) == [b"OK", 3]
    stored = await registry.stored("r")
    assert [id_ for id_, _ in stored] == [b"1-0", b"2-0", b"3-0"]
    assert stored[0][1] == [b"t", b"message.delta", b"d", ITEM[1]]
    after = await record(registry)
    assert (after["last"], after["first"]) == ("3", "1")
    assert int(after["bytes"]) == sum(len(f[1]) + len(f[3]) for _, f in stored)
    assert float(after["beat"]) > float(before["beat"])
    assert await ttl(registry, registry.keys.items("r")) == -1


async def test_append_checks_in_the_documented_order(registry: Registry) -> None:
    bad, big = ("BAD", b"no"), ("x", b'{"ts":1,"a":"%b"}' % (b"x" * 2000))
    assert await append(registry, 1, ITEM) == [b"NOTFOUND"]
    assert (await create(registry, "r", "1024 100 100000 1000 1000 10"))[0] == b"OK"
    assert await append(registry, 1, ITEM) == [b"FENCED"]
    assert await append(registry, 1, ITEM, owner="") == [b"FENCED"]
    await registry.script("claim", "r", "r", 1, "me")
    assert await append(registry, 9, big, bad, owner="you") == [b"FENCED"]
    assert await append(registry, 9, big, bad, epoch=2) == [b"FENCED"]
    assert await append(registry, 1, ITEM, ITEM) == [b"OK", 2]
    assert await append(registry, 1, bad, big) == [b"OK", 2], "what is stored already is not read again"
    assert await append(registry, 4, big, bad) == [b"GAP", 2]
    assert await append(registry, 3, bad, big) == [b"TOOBIG", 4, len(big[0]) + len(big[1]), 1024]
    assert (await append(registry, 3, ITEM, bad))[:2] == [b"BADITEM", 4]
    assert await append(registry, 2, bad, ITEM, FINAL) == [b"OK", 4]
    assert await append(registry, 5, big, bad) == [b"SEALED", 4]
    assert await append(registry, 9, big, bad) == [b"SEALED", 4]
    assert await append(registry, 4, big) == [b"OK", 4]
    assert await append(registry, 1, owner="you") == [b"FENCED"]
    assert len(await registry.stored("r")) == 4


async def test_append_is_whole_or_nothing(registry: Registry) -> None:
    await claimed(registry)
    before = await record(registry)
    assert (await append(registry, 1, ITEM, ITEM, ("x", b"{}")))[0] == b"BADITEM"
    assert await registry.stored("r") == []
    assert await record(registry) == before


@pytest.mark.parametrize("first", ["0", "-1", "x", "1.5", "", "1e3", "0x1"])
async def test_append_refuses_arguments_that_are_none(registry: Registry, first: str) -> None:
    await claimed(registry)
    with pytest.raises(StoreError, match="append"):
        await registry.script("append", "r", "r", "me", 1, first, *ITEM)
    with pytest.raises(StoreError, match="append"):
        await registry.script("append", "r", "r", "me", 1, 1, "message.delta")


BAD_ITEMS = [
    ("", b'{"ts":1}'),
    ("A", b'{"ts":1}'),
    ("a b", b'{"ts":1}'),
    ("a" * 65, b'{"ts":1}'),
    ("é", b'{"ts":1}'),
    ("a\n", b'{"ts":1}'),
    *((name, b'{"ts":1}') for name in ("end", "reset", "gap", "cursor", "open", "error")),
    ("x", b""),
    ("x", b"{}"),
    ("x", b'{"a":1,"ts":1}'),
    ("x", b' {"ts":1}'),
    ("x", b'{ "ts":1}'),
    ("x", b'{"ts":1'),
    ("x", b'{"ts":1,}'),
    ("x", b'{"ts":1}x'),
    ("x", b'{"ts":1},{"ts":2}'),
    ("x", b'{"ts":1}{"ts":2}'),
    ("x", b'[{"ts":1}]'),
    ("x", b'{"ts":}'),
    ("x", b'{"ts":null}'),
    ("x", b'{"ts":"1"}'),
    ("x", b'{"ts":{"a":1}}'),
    ("x", b'{"ts":01}'),
    ("x", b'{"ts":0x10}'),
    ("x", b'{"ts":1,"a":"\n"}'),
    ("x", b'{"ts":1,"a":"\r"}'),
    ("x", b'{"ts":1,\r\n"a":1}'),
    ("x", b'{"ts":1,"a":"\t"}'),
    ("x", b'{"ts":1,"a":"\0"}'),
    ("x", b'{"ts":1,"a":"\\x"}'),
    ("x", b'{"ts":1,"a":"\\\xe2\x80\xa8"}'),
    ("x", b'{"ts":1,"seq":5}'),
    ("x", b'{"ts":1,"run_id":"other"}'),
    ("message.delta", b'{"ts":1.5,"component_id":"agent","round":1,"index":0,"text":"a"b"}'),
    ("message.delta", b'{"ts":1.5,"component_id":"agent","round":1,"index":0,"text":"a\\"}'),
    ("message.delta", b'{"ts":1.5,"component_id":"agent","round":01,"index":0,"text":"a"}'),
    ("message.delta", b'{"ts":1.5,"component_id":"agent","round":1,"index":0,"text":"a"},'),
]


@pytest.mark.parametrize("item", BAD_ITEMS, ids=lambda item: repr(item[1] if item[0] == "x" else item))
async def test_append_refuses_items_that_viewers_could_not_read(registry: Registry, item: tuple[str, bytes]) -> None:
    await claimed(registry)
    status, seq, reason = await append(registry, 1, ITEM, item)
    assert (status, seq) == (b"BADITEM", 2)
    assert reason
    assert await registry.stored("r") == []


async def test_append_refuses_numbers_that_are_no_json(registry: Registry) -> None:
    if registry.store.url.startswith("memory:"):
        pytest.skip("the stand-in's JSON is Python's, which takes NaN")
    await claimed(registry)
    for number in (b"NaN", b"Infinity", b"-Infinity", b"inf", b"0x1"):
        assert (await append(registry, 1, ("x", b'{"ts":1,"a":%b}' % number)))[0] == b"BADITEM"
    # The setting that does it is shared by all scripts of the server: it is as it was.
    assert await registry.store.call("EVAL", "return type(cjson.decode('[NaN]'))", 0) == b"table"


GOOD_DATA = [
    b'{"ts":1}',
    b'{"ts":-1.5e3}',
    b'{"ts":0}',
    b'{"ts":1.5,"component_id":"agent","round":1,"index":0,"text":""}',
    b'{"ts":1.5,"component_id":"agent","round":10,"index":11,"text":"\\n \xe2\x82\xac \\" \\\\"}',
    '{"ts":1,"a":"߿ࠀ퟿\ue000\uffff é 😀 \U0010ffff \x7f","b":[1,{"c":null}],"d":true}'.encode(),
    b'{"ts":1,"a":"\\u0000 \\ud83d\\ude00"}',
    b'{"ts":1,"a":{"seq":1,"run_id":"x"},"n":9007199254740993}',
    b'{"ts":1,"a":"NaN Infinity 0x1"}',
]


async def test_append_stores_what_clients_take_for_line_ends_escaped(registry: Registry) -> None:
    await claimed(registry)
    data = '{"ts":1,"a":"\u2028a\u2029b\u0085\u2027é"}'.encode()
    final = '{"ts":2,"message":null,"b":"\u2028"}'.encode()
    assert await append(registry, 1, ("x", data), ("final", final)) == [b"OK", 2]
    stored = [fields[3] for _, fields in await registry.stored("r")]
    assert len(b"".join(stored).decode().splitlines()) == 1
    assert [json.loads(d) for d in stored] == [json.loads(data), json.loads(final)]
    kept = await record(registry)
    assert len(kept["outcome"].splitlines()) == 1
    assert int(kept["bytes"]) == sum(len(t) + len(d) for (_, (_, t, _, d)) in await registry.stored("r"))


@pytest.mark.parametrize("data", GOOD_DATA)
async def test_append_stores_what_json_allows_byte_for_byte(registry: Registry, data: bytes) -> None:
    json.loads(data)
    await claimed(registry)
    assert await append(registry, 1, ("a.new_type", data)) == [b"OK", 1]
    assert (await registry.stored("r"))[0][1] == [b"t", b"a.new_type", b"d", data]


@pytest.mark.parametrize(
    ("fence", "status"), [("final", "completed"), ("failed", "failed"), ("cancelled", "cancelled")]
)
async def test_a_fence_ends_the_run_in_the_same_step(registry: Registry, fence: str, status: str) -> None:
    await claimed(registry)
    await registry.store.call("XADD", registry.keys.control("r"), "*", "t", "cancel", "d", "{}")
    data = b'{"ts":2,"component_id":"agent","code":"c"}'
    assert await append(registry, 1, ITEM, (fence, data)) == [b"OK", 2]
    ended = await record(registry)
    assert (ended["status"], ended["owner"], ended["last"]) == (status, "me", "2")
    assert float(ended["ended"]) >= float(ended["started"])
    assert json.loads(ended["outcome"]) == {"type": fence, "seq": 2, "item": json.loads(data)}
    assert not await registry.is_live("r")
    assert await registry.store.call("EXISTS", registry.keys.control("r")) == 0
    assert 86_000_000 < await ttl(registry, registry.keys.items("r")) <= 86_400_000
    assert 604_000_000 < await ttl(registry, registry.keys.run("r")) <= 604_800_000
    assert await registry.news("r") == ["run.created", "run.started", f"run.{status}"]
    assert await append(registry, 1, ITEM, (fence, data)) == [b"OK", 2], "the reply was lost: the same again"
    assert await record(registry) == ended


async def test_a_fence_must_be_the_last_item(registry: Registry) -> None:
    await claimed(registry)
    assert (await append(registry, 1, FINAL, ITEM))[:2] == [b"BADITEM", 1]
    assert (await append(registry, 1, FINAL, FINAL))[:2] == [b"BADITEM", 1]
    assert (await append(registry, 1, ("failed", b'{"ts":1}'), FINAL))[:2] == [b"BADITEM", 1]


async def test_items_never_outlive_their_record(registry: Registry) -> None:
    await claimed(registry, "1024 100 100000 5000000 3000000 10")
    await append(registry, 1, FINAL)
    assert await ttl(registry, registry.keys.items("r")) <= 3_000_000


async def test_append_keeps_the_newest_usage_and_cost(registry: Registry) -> None:
    await claimed(registry)
    await append(
        registry, 1, ("usage", b'{"ts":1,"n":1}'), ("cost", b'{"ts":1,"amount":"1"}'), ("usage", b'{"ts":1,"n":2}')
    )
    await append(registry, 4, ITEM)
    kept = await record(registry)
    assert (kept["usage"], kept["cost"]) == ('{"ts":1,"n":2}', '{"ts":1,"amount":"1"}')


async def test_append_trims_exactly_by_count(registry: Registry) -> None:
    await claimed(registry, "1024 10 1000000 1000 1000 10")
    for first in range(1, 200, 7):
        await append(registry, first, *[ITEM] * 7)
        last = first + 6
        kept = await registry.stored("r")
        now = await record(registry)
        assert [id_ for id_, _ in kept] == [b"%d-0" % seq for seq in range(max(1, last - 9), last + 1)]
        assert int(now["first"]) == max(1, last - 9)
        assert int(now["bytes"]) == sum(len(f[1]) + len(f[3]) for _, f in kept)


async def test_append_trims_a_batch_that_is_longer_than_what_is_kept(registry: Registry) -> None:
    await claimed(registry, "1024 3 1000000 1000 1000 10")
    assert await append(registry, 1, *[ITEM] * 50) == [b"OK", 50]
    assert [id_ for id_, _ in await registry.stored("r")] == [b"48-0", b"49-0", b"50-0"]


async def test_append_trims_exactly_by_bytes_and_keeps_the_newest(registry: Registry) -> None:
    await claimed(registry, "1024 1000 500 1000 1000 10")
    for seq in range(1, 40):
        item = ("x", b'{"ts":1,"a":"%b"}' % (b"y" * (seq * 37 % 300)))
        await append(registry, seq, item)
        sizes = [len(f[1]) + len(f[3]) for _, f in await registry.stored("r")]
        now = await record(registry)
        assert sum(sizes) == int(now["bytes"]) <= 500
        assert int(now["first"]) == seq - len(sizes) + 1
    await append(registry, 40, ("x", b'{"ts":1,"a":"%b"}' % (b"y" * 700)))
    assert [id_ for id_, _ in await registry.stored("r")] == [b"40-0"]


async def test_append_takes_batches_beyond_the_stack_of_lua(registry: Registry) -> None:
    await claimed(registry)
    count = 300 if registry.store.url.startswith("memory:") else 9_000
    assert await append(registry, 1, *[ITEM] * count) == [b"OK", count]


async def test_the_bus_is_capped_exactly(registry: Registry) -> None:
    await claimed(registry, "1024 10 10000 1000 1000 2")
    await append(registry, 1, FINAL)
    assert await registry.news("r") == ["run.started", "run.completed"]


# beat


async def test_beat_moves_while_the_run_is_open(registry: Registry) -> None:
    assert await registry.script("beat", "r", "r", "me", 1) == [b"NOTFOUND"]
    await create(registry, "r")
    assert await registry.script("beat", "r", "r", "", 1) == [b"FENCED"]
    await registry.script("claim", "r", "r", 1, "me")
    before = await record(registry)
    assert await registry.script("beat", "r", "r", "me", 1) == [b"OK", 0, 1, 0]
    assert float((await record(registry))["beat"]) > float(before["beat"])
    assert await registry.script("beat", "r", "r", "you", 1) == [b"FENCED"]
    assert await registry.script("beat", "r", "r", "me", 2) == [b"FENCED"]
    await registry.script("cancel", "r", "r", '{"code":"c"}')
    assert await registry.script("beat", "r", "r", "me", 1) == [b"OK", 0, 1, 1]
    await append(registry, 1, FINAL)
    sealed = await record(registry)
    assert await registry.script("beat", "r", "r", "me", 1) == [b"OK", 1, 1, 1]
    assert await registry.script("beat", "r", "r", "me", 1, "rewound") == [b"SEALED", 1]
    assert await record(registry) == sealed


async def test_an_owner_that_cannot_resend_changes_the_epoch_once(registry: Registry) -> None:
    await claimed(registry)
    await append(registry, 1, ITEM, ITEM)
    assert await registry.script("beat", "r", "r", "me", 1, "rewound") == [b"OK", 2, 2, 0]
    assert await registry.script("beat", "r", "r", "me", 1, "rewound") == [b"OK", 2, 2, 0], "the reply was lost"
    rewound = await record(registry)
    assert (rewound["epoch"], rewound["rewound_to"]) == ("2", "2")
    assert await append(registry, 3, ITEM, epoch=1) == [b"FENCED"]
    assert await append(registry, 3, ITEM, epoch=2) == [b"OK", 3]
    assert await registry.script("beat", "r", "r", "me", 2, "rewound") == [b"OK", 3, 3, 0]
    assert await registry.script("beat", "r", "r", "me", 1, "rewound") == [b"FENCED"]


async def test_where_a_queued_attempt_lies_is_noted(registry: Registry) -> None:
    await create(registry, "r")
    assert (await registry.script("beat", "r", "r", "", 2, "enqueued", "5-0"))[0] == b"OK"
    assert (await record(registry))["queue_entry"] == ""
    assert (await registry.script("beat", "r", "r", "", 1, "enqueued", "5-0"))[0] == b"OK"
    assert (await record(registry))["queue_entry"] == "5-0"
    await registry.script("claim", "r", "r", 1, "me")
    await registry.script("beat", "r", "r", "", 1, "enqueued", "6-0")
    assert (await record(registry))["queue_entry"] == ""


# takeover

LOST = ('{"code":"worker_lost"}', '{"code":"cancelled"}')


async def takeover(registry: Registry, owner: str, beat: str, attempts: int = 3) -> Any:
    return await registry.script("takeover", "r", "r", owner, beat, attempts, *LOST)


async def test_takeover_is_won_by_one_and_fences_the_owner(registry: Registry) -> None:
    await claimed(registry)
    await append(registry, 1, ITEM)
    seen = await record(registry)
    assert await takeover(registry, "you", seen["beat"]) == [b"KEPT"]
    assert await takeover(registry, "me", "1.0") == [b"KEPT"]
    assert await takeover(registry, "me", seen["beat"]) == [b"FAILED", 2]
    assert await takeover(registry, "me", seen["beat"]) == [b"ENDED"]
    ended = await record(registry)
    assert (ended["status"], ended["epoch"], ended["rewound_to"], ended["last"]) == ("failed", "2", "1", "2")
    _, fields = (await registry.stored("r"))[-1]
    assert fields[:2] == [b"t", b"failed"]
    assert json.loads(fields[3]) == {"ts": float(ended["ended"]), "code": "worker_lost"}
    assert json.loads(ended["outcome"]) == {"type": "failed", "seq": 2, "item": json.loads(fields[3])}
    assert int(ended["bytes"]) == sum(len(f[1]) + len(f[3]) for _, f in await registry.stored("r"))
    assert not await registry.is_live("r")
    assert 0 < await ttl(registry, registry.keys.items("r")) <= 86_400_000
    assert 0 < await ttl(registry, registry.keys.run("r")) <= 604_800_000
    assert await registry.news("r") == ["run.created", "run.started", "run.failed"]
    assert await append(registry, 2, ITEM) == [b"FENCED"]
    assert await append(registry, 1, ITEM) == [b"FENCED"]
    assert await registry.script("beat", "r", "r", "me", 1) == [b"FENCED"]
    assert await registry.script("claim", "r", "r", 1, "new") == [b"REFUSED", b"ended"]


async def test_takeover_spares_an_owner_that_was_heard_of(registry: Registry) -> None:
    await claimed(registry)
    seen = await record(registry)
    await registry.script("beat", "r", "r", "me", 1)
    assert await takeover(registry, "me", seen["beat"]) == [b"KEPT"]
    seen = await record(registry)
    await append(registry, 1, ITEM)
    assert await takeover(registry, "me", seen["beat"]) == [b"KEPT"]
    seen = await record(registry)
    await append(registry, 1, ITEM)
    assert await takeover(registry, "me", seen["beat"]) == [b"KEPT"], "a repeated append is a sign of life too"


async def test_takeover_ends_as_cancelled_what_was_to_be_cancelled(registry: Registry) -> None:
    await claimed(registry, lost="retry")
    await registry.script("cancel", "r", "r", '{"code":"c"}')
    assert await takeover(registry, "me", (await record(registry))["beat"]) == [b"CANCELLED", 1]
    assert (await record(registry))["status"] == "cancelled"
    assert await registry.store.call("EXISTS", registry.keys.control("r")) == 0


async def test_takeover_queues_the_next_attempt_while_there_is_one(registry: Registry) -> None:
    await claimed(registry, lost="retry")
    await append(registry, 1, ITEM, ITEM)
    assert await takeover(registry, "me", (await record(registry))["beat"], 2) == [b"QUEUED", 2]
    queued = await record(registry)
    assert (queued["status"], queued["owner"], queued["attempt"], queued["epoch"]) == ("queued", "", "2", "2")
    assert queued["rewound_to"] == "2"
    assert await registry.is_live("r")
    assert await append(registry, 3, ITEM) == [b"FENCED"]
    assert await registry.script("claim", "r", "r", 1, "late") == [b"REFUSED", b"attempt"]
    assert (await registry.script("claim", "r", "r", 2, "new"))[0] == b"OK"
    assert (await record(registry))["started"] == queued["started"]
    assert await append(registry, 3, ITEM, owner="new", epoch=2) == [b"OK", 3]
    assert await takeover(registry, "new", (await record(registry))["beat"], 2) == [b"FAILED", 4]


async def test_one_caller_is_told_to_queue_a_queued_run_again(registry: Registry) -> None:
    await create(registry, "r")
    seen = await record(registry)
    assert await takeover(registry, "", seen["beat"]) == [b"REQUEUE", 1]
    assert await takeover(registry, "", seen["beat"]) == [b"KEPT"]
    assert (await record(registry))["status"] == "queued"


async def test_takeover_forgets_a_run_without_a_record(registry: Registry) -> None:
    await create(registry, "r")
    await registry.store.call("DEL", registry.keys.run("r"))
    assert await takeover(registry, "", "") == [b"NOTFOUND"]
    assert not await registry.is_live("r")
    runs = registry.keys.runs(registry.keys.partition("r"))
    assert await registry.store.call("ZCARD", runs) == 0


# cancel


async def test_cancel_ends_a_queued_run_at_once(registry: Registry) -> None:
    assert await registry.script("cancel", "r", "r", '{"code":"c"}') == [b"NOTFOUND"]
    await create(registry, "r")
    assert await registry.script("cancel", "r", "r", '{"code":"c"}') == [b"OK", b"cancelled", 1]
    ended = await record(registry)
    assert (ended["status"], ended["last"]) == ("cancelled", "1")
    ((id_, fields),) = await registry.stored("r")
    assert (id_, fields[:2]) == (b"1-0", [b"t", b"cancelled"])
    assert json.loads(fields[3]) == {"ts": float(ended["ended"]), "code": "c"}
    assert json.loads(ended["outcome"]) == {"type": "cancelled", "seq": 1, "item": json.loads(fields[3])}
    assert int(ended["bytes"]) == len(fields[1]) + len(fields[3])
    assert not await registry.is_live("r")
    assert await ttl(registry, registry.keys.items("r")) > 0
    assert await ttl(registry, registry.keys.run("r")) > 0
    assert await registry.news("r") == ["run.created", "run.cancelled"]
    assert await registry.script("cancel", "r", "r", '{"code":"c"}') == [b"ENDED", b"cancelled", 1]
    assert await record(registry) == ended


async def test_cancel_tells_the_owner_of_a_running_run_once(registry: Registry) -> None:
    await claimed(registry)
    assert await registry.script("cancel", "r", "r", '{"code":"c"}') == [b"OK", b"running"]
    assert await registry.script("cancel", "r", "r", '{"code":"c"}') == [b"OK", b"running"]
    ((_, fields),) = await registry.store.call("XRANGE", registry.keys.control("r"), "-", "+")
    assert fields[:2] == [b"t", b"cancel"]
    assert (await record(registry))["status"] == "running"
    assert await registry.news("r") == ["run.created", "run.started", "run.cancel_requested"]
    await append(registry, 1, FINAL)
    assert await registry.script("cancel", "r", "r", '{"code":"c"}') == [b"ENDED", b"completed", 1]


async def test_cancel_after_the_end(registry: Registry) -> None:
    await claimed(registry)
    await append(registry, 1, FINAL)
    assert await registry.script("cancel", "r", "r", '{"code":"c"}') == [b"ENDED", b"completed", 0]


# ask and answer


ASK = '{"kind":"approval","choices":["once","deny"],"free":false,"payload":{"command":"ls"}}'


async def ask(registry: Registry, id_: str = "q", d: str = ASK, owner: str = "me", seconds: Any = 60) -> Any:
    return await registry.script("ask", "r", "r", owner, 1, id_, seconds, d)


async def answer(registry: Registry, text: str, id_: str = "q", how: str = "answered", by: str = "") -> Any:
    return await registry.script("answer", "r", "r", id_, text, how, by)


async def test_ask_registers_and_tells(registry: Registry) -> None:
    assert await ask(registry) == [b"NOTFOUND"]
    await create(registry, "r")
    assert await ask(registry, owner="") == [b"FENCED"]
    assert (await registry.script("claim", "r", "r", 1, "me"))[0] == b"OK"
    assert await ask(registry, owner="other") == [b"FENCED"]
    before = await record(registry)
    status, asked, expires = await ask(registry, seconds="2.5")
    assert (status, float(expires) - float(asked)) == (b"OK", pytest.approx(2.5, abs=1e-4))
    after = await record(registry)
    assert (after.pop("asks"), after.pop("ask:q")) == (
        "1+q",
        f'{{"attempt":1,"asked_at":{asked.decode()},"expires_at":{expires.decode()},{ASK[1:]}',
    )
    assert after == before
    assert await ask(registry, d="whatever") == [b"OK", asked, expires], "known already"
    assert await registry.news("r") == ["run.created", "run.started", "run.input_requested"]
    await append(registry, 1, FINAL)
    assert await ask(registry, "later") == [b"SEALED", 1]


@pytest.mark.parametrize(
    ("id_", "d", "seconds"),
    [
        ("a b", ASK, 60),
        ("x" * 129, ASK, 60),
        ("q", ASK, 0),
        ("q", ASK, "soon"),
        ("q", "no json", 60),
        ("q", "[]", 60),
        ("q", "{}", 60),
        ("q", " " + ASK, 60),
        ("q", ASK.replace("approval", "order"), 60),
        ("q", ASK.replace('"once","deny"', ""), 60),
        ("q", ASK.replace('"deny"', "3"), 60),
        ("q", ASK.replace('"deny"', '""'), 60),
        ("q", ASK.replace('["once","deny"]', '"once"'), 60),
        ("q", ASK.replace("false", "0"), 60),
        ("q", ASK.replace('{"command":"ls"}', '"ls"'), 60),
        ("q", ASK.replace('"kind"', '"attempt":9,"kind"'), 60),
        ("q", ASK.replace('"kind"', '"how":"answered","kind"'), 60),
    ],
)
async def test_ask_refuses_what_nobody_could_answer(registry: Registry, id_: str, d: str, seconds: Any) -> None:
    await claimed(registry)
    before = await record(registry)
    assert (await ask(registry, id_, d, seconds=seconds))[0] == b"BADASK"
    assert (await ask(registry, d=ASK.replace("ls", "x" * 131_072)))[:1] == [b"TOOBIG"]
    assert await record(registry) == before


async def test_answer_settles_once_and_tells_the_owner(registry: Registry) -> None:
    assert await answer(registry, "once") == [b"NOTFOUND"]
    await claimed(registry)
    assert await answer(registry, "once") == [b"UNKNOWN"]
    await ask(registry)
    assert await answer(registry, "maybe") == [b"BADANSWER", b"approval", b"once", b"deny"]
    assert await answer(registry, "x" * 16_385) == [b"TOOBIG", 16_385, 16_384]
    with pytest.raises(StoreError, match="how must be"):
        await answer(registry, "once", how="guessed")
    assert await answer(registry, "once", by="anna") == [b"OK", b"approval"]
    settled = await record(registry)
    assert settled["asks"] == "1-q"
    marker = json.loads(settled["ask:q"])
    assert set(marker) == {"attempt", "asked_at", "expires_at", "answer", "by", "how", "kind"}
    for how in ("answered", "expired", "stopped"):
        assert await answer(registry, "deny", how=how) == [b"SETTLED", b"answered", b"once", b"anna"]
    ((_, fields),) = await registry.store.call("XRANGE", registry.keys.control("r"), "-", "+")
    assert fields[:2] == [b"t", b"input"]
    entry = json.loads(fields[3])
    assert (entry["request_id"], entry["answer"], entry["by"]) == ("q", "once", "anna")
    assert (await registry.news("r"))[-2:] == ["run.input_requested", "run.input_answered"]
    await append(registry, 1, FINAL)
    assert await answer(registry, "deny") == [b"SETTLED", b"answered", b"once", b"anna"]


async def test_the_owner_settles_with_any_word_and_needs_no_telling(registry: Registry) -> None:
    await claimed(registry)
    await ask(registry)
    assert await answer(registry, "whatever", how="expired") == [b"OK", b"approval"]
    assert await registry.store.call("EXISTS", registry.keys.control("r")) == 0
    assert await answer(registry, "once") == [b"SETTLED", b"expired", b"whatever", b""]


async def test_answer_after_the_end_and_in_a_further_attempt(registry: Registry) -> None:
    await claimed(registry, lost="retry")
    await ask(registry)
    seen = await record(registry)
    assert (await takeover(registry, seen["owner"], seen["beat"]))[0] == b"QUEUED"
    assert await answer(registry, "once") == [b"VOID"]
    assert (await registry.script("claim", "r", "r", 2, "me2"))[0] == b"OK"
    assert await answer(registry, "once") == [b"VOID"]
    assert (await registry.script("ask", "r", "r", "me2", 2, "q2", 60, ASK))[0] == b"OK"
    assert (await record(registry))["asks"] == "1+q 2+q2"
    assert await registry.script("cancel", "r", "r", '{"code":"c"}') == [b"OK", b"running"]
    assert await answer(registry, "once", "q2") == [b"OK", b"approval"], "a run that is to stop may be answered still"
    assert (await registry.script("ask", "r", "r", "me2", 2, "q3", 60, ASK))[0] == b"OK"
    assert (await registry.script("append", "r", "r", "me2", 2, 1, *FINAL))[0] == b"OK"
    assert await answer(registry, "once", "q3") == [b"ENDED", b"completed"]


async def test_the_stored_delta_is_what_the_fast_check_knows() -> None:
    """The pattern in append.lua is for the form in which items.py writes a text delta."""
    from broker.items import MessageDelta, encode

    assert encode(MessageDelta(ts=1.5, text="x")).data == delta("x").data
