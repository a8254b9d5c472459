"""Events as a broken adapter might send them: any value that the type allows, in any order."""

from __future__ import annotations

from hypothesis import strategies as st

from reknit.catalog.load import builtin
from reknit.model import events as ev
from reknit.model.entities import Entity, Gpu, JobSpec, Node, RankPlacement
from reknit.model.progress import RankProgress
from reknit.model.signals import Signal
from reknit.model.terms import Trust

START = 1_700_000_000.0
_INT64 = 2**63 - 1
_CODES = sorted(row.code for row in builtin().rows)

numbers = st.one_of(st.integers(-2, 8), st.integers(-2, 8), st.integers(-_INT64, _INT64))
times = st.one_of(
    st.floats(START - 1e4, START + 1e6),
    st.sampled_from([0.0, -1.0, 1e18, float("inf"), float("-inf"), float("nan"), START]),
)
spans = st.one_of(st.floats(0.0, 100.0), st.sampled_from([-1.0, 1e300, float("inf"), float("nan")]))
names = st.sampled_from(["train", "train", "other", "", "node0", "inc-1"])
nodes = st.sampled_from(["node0", "node1", "node2", "", "train"])
pools = st.sampled_from(["default", "default", "b"])
texts = st.sampled_from(["", "x", "node", "\x00\x1b[31m", "9" * 30, "²", "1e9", "-1", "nan"])
codes = st.one_of(
    st.sampled_from(_CODES), st.sampled_from(["", "job.stall", "rank.stall", "nvidia.xid.79", "what.ever"])
)
commands = st.one_of(
    st.builds("inc-{}/{}".format, st.integers(0, 4), st.integers(0, 9)),
    st.sampled_from(["", "/", "inc-1", "x/1/2"]),
)
attributes = st.dictionaries(
    st.sampled_from(["step", "last_sign", "signature", "status", "gpu_index"]), texts, max_size=3
)

entities = st.builds(
    Entity,
    kind=st.sampled_from(["gpu", "node", "rank", "job", "nic", "link", "nvlink_domain", "cluster"]),
    id=st.sampled_from(["0", "1", "²", "9" * 30, "node0", "node1/0000:00:00", "train", ""]),
)
placements = st.lists(
    st.builds(RankPlacement, rank=st.one_of(st.integers(0, 4), numbers), node=nodes), max_size=5
).map(tuple)
progress = st.builds(
    RankProgress,
    step=numbers,
    step_at=times,
    loss=st.one_of(st.none(), spans),
    durations=st.lists(spans, max_size=4).map(tuple),
    saved_step=numbers,
    saved_at=times,
    loaded_step=numbers,
    loaded_at=times,
    phase=st.sampled_from(["", "checkpoint", "evaluation", "warmup", "\x00"]),
    phase_at=times,
    phase_seconds=st.dictionaries(st.sampled_from(["compute", "communicate", "x"]), spans, max_size=3),
    alive_at=times,
)
signals = st.builds(
    Signal,
    code=codes,
    entity=entities,
    first_seen=times,
    last_seen=times,
    source=st.sampled_from(["kernel", "training_log", "process", "progress", "probe", "person", "scheduler"]),
    trust=st.sampled_from(list(Trust)),
    count=numbers,
    node=nodes,
    job=names,
    attempt=numbers,
    rank=st.one_of(st.none(), numbers),
    excerpt=texts,
    attributes=attributes,
    boot_id=texts,
    joined=st.booleans(),
)
gpus = st.builds(Gpu, index=numbers, pci=texts)
specs = st.builds(JobSpec, id=names, nodes=st.integers(-1, 4), ranks_per_node=st.integers(-1, 4), pool=pools)
events: st.SearchStrategy[ev.AnyEvent] = st.one_of(
    st.builds(ev.NodeSeen, st.builds(Node, nodes, st.lists(gpus, max_size=2).map(tuple), texts, pools)),
    st.builds(ev.NodeGone, nodes),
    st.builds(ev.JobSubmitted, specs),
    st.builds(ev.AttemptStarted, names, numbers, placements),
    st.builds(ev.AttemptStarted, st.just("train"), st.integers(1, 4), placements),
    st.builds(
        ev.RankExited,
        names,
        numbers,
        numbers,
        times,
        st.one_of(st.none(), numbers),
        st.one_of(st.none(), numbers),
        st.booleans(),
    ),
    st.builds(
        ev.RankExited, st.just("train"), st.integers(1, 4), st.integers(0, 4), times, st.integers(0, 2)
    ),
    st.builds(ev.AttemptEnded, names, numbers),
    st.builds(ev.JobSucceeded, names, numbers),
    st.builds(ev.JobAbandoned, names, numbers),
    st.builds(ev.SignalSeen, signals),
    st.builds(ev.SignalSeen, signals),
    st.builds(ev.ProgressSeen, names, numbers, st.dictionaries(numbers, progress, max_size=4)),
    st.builds(
        ev.ProgressSeen,
        st.just("train"),
        st.integers(1, 4),
        st.dictionaries(st.integers(0, 4), progress, max_size=4),
    ),
    st.builds(ev.CommandDone, commands, texts, texts),
    st.builds(ev.CommandFailed, commands, texts, st.booleans()),
    st.builds(ev.NodeReleaseRequested, nodes, texts),
    st.builds(ev.BrakeReleased, texts),
    st.builds(ev.WatchResumed),
    st.builds(ev.Tick),
)
gaps = st.sampled_from([0.0, 0.0, 0.01, 3.0, 40.0, 400.0, 4000.0, 90000.0, -5.0, -1e5, float("nan")])
lists = st.lists(st.tuples(gaps, events), max_size=50)
