"""What happens to an encoding folder when processes are killed, run together, or stopped by limits.

Run as a script, which prints what it saw as JSON. It imports everything once and forks a process
for each session, so that dozens of sessions take seconds, and nothing of the test process (threads,
libraries in use) is copied into them.
"""

import hashlib
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from datasets import Dataset

from modeling_condenser.encoding import encode
from modeling_condenser.encoding.claims import Claims
from modeling_condenser.encoding.embeddings import Embeddings
from modeling_condenser.encoding.encode import encode_collection
from modeling_condenser.encoding.memory import PeakMemory, resident_bytes
from tests.encoding.stubs import StubEncoder, make_passages

N_PASSAGES, SHARD_SIZE = 400, 10
N_SHARDS = N_PASSAGES // SHARD_SIZE
N_KILLS = 10


def fork(action: Callable[[], object], output: Path | None = None) -> int:
    """Run something in a copy of this process; its exit status says whether it raised."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        action()
        status = 0
    except BaseException:
        if output:
            output.write_text(traceback.format_exc())
    os._exit(status)


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def vectors_sha(folder: Path) -> str:
    embeddings = Embeddings.open(folder)
    embeddings.verify()
    return hashlib.sha256(b"".join(block.tobytes() for _, block in embeddings.blocks())).hexdigest()


def leftovers(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob(".*.partial"))


def encode_here(folder: Path, log: Path | None = None, seconds: float = 0.0) -> None:
    encode_collection(
        StubEncoder(seconds, log=log),
        make_passages(N_PASSAGES),
        folder,
        shard_size=SHARD_SIZE,
        progress=False,
    )


def killed_at_random(scratch: Path) -> dict[str, object]:
    """Ten sessions killed at random points, and one that ends."""
    folder, log = scratch / "random", scratch / "random.log"
    log.touch()
    rng = random.Random(int(os.environ.get("KILL_SEED", "0")))
    killed, redone = 0, []
    while killed < N_KILLS:
        done = len(list(folder.glob("shard-*.json"))) if folder.exists() else 0
        before = len(log.read_text().splitlines())
        pid = fork(lambda: encode_here(folder, log, seconds=0.05))
        time.sleep(rng.uniform(0.03, 0.16))
        os.kill(pid, signal.SIGKILL)
        killed += wait(pid) == -signal.SIGKILL
        calls = len(log.read_text().splitlines()) - before
        redone.append(calls - (len(list(folder.glob("shard-*.json"))) - done))
    status = wait(fork(lambda: encode_here(folder, log), scratch / "random.error"))
    texts = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
    return {
        "kills": killed,
        "status": status,
        "lost_per_kill": redone,
        "calls": len(texts),
        "shards_begun": len(set(texts)),
        "sha": vectors_sha(folder),
        "leftovers": leftovers(folder),
    }


def killed_at_every_step(scratch: Path) -> dict[str, object]:
    """Sessions that are each killed before their k-th write, sync or rename, and then finished."""
    folder, error, passages = scratch / "steps", scratch / "steps.error", make_passages(30)

    def finish() -> None:
        encode_collection(StubEncoder(), passages, folder, shard_size=10, progress=False)

    def killed_at(step: int) -> None:
        left = [step]

        def count() -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            if event in ("os.rename", "os.mkdir") or (event == "open" and arguments[1] == "wb"):
                count()

        fsync = os.fsync
        os.fsync = lambda descriptor: (count(), fsync(descriptor))[1]
        sys.addaudithook(watch)
        finish()

    finish()
    expected, killed, status = vectors_sha(folder), 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        shutil.rmtree(folder)
        status = wait(fork(partial(killed_at, killed + 1), error))
        killed += status == -signal.SIGKILL
        again = wait(fork(finish, error))
        if again or vectors_sha(folder) != expected or leftovers(folder):
            return {"kills": killed, "again": again, "leftovers": leftovers(folder)}
    return {"kills": killed, "status": status, "again": 0, "leftovers": []}


def two_at_once(scratch: Path) -> dict[str, object]:
    """Two sessions that know nothing of each other, on one folder."""
    folder, log = scratch / "two", scratch / "two.log"
    folder.mkdir()
    pids = [
        fork(lambda: encode_here(folder, log, seconds=0.02), scratch / f"two-{i}.error")
        for i in range(2)
    ]
    statuses = [wait(pid) for pid in pids]
    lines = log.read_text().splitlines()
    return {
        "statuses": statuses,
        "calls": len(lines),
        "processes": len({line.split()[0] for line in lines}),
        "sha": vectors_sha(folder),
    }


def taken_over(scratch: Path) -> dict[str, object]:
    """A session waits for a shard that another process holds, and takes it over when that dies."""
    folder, log = scratch / "over", scratch / "over.log"
    folder.mkdir()

    def hold() -> None:
        with Claims(folder) as claims, claims.of_shard(5) as is_mine:
            assert is_mine
            (folder / ".shard-00005.npy.other-1.partial").write_bytes(b"half")
            time.sleep(60)

    holder = fork(hold)
    while not (folder / ".shard-00005.npy.other-1.partial").exists():
        time.sleep(0.01)
    pid = fork(lambda: encode_here(folder, log), scratch / "over.error")
    while len(list(folder.glob("shard-*.json"))) < N_SHARDS - 1:
        time.sleep(0.01)
    time.sleep(0.5)
    waits = os.waitpid(pid, os.WNOHANG)[0] == 0
    untouched = leftovers(folder)
    os.kill(holder, signal.SIGKILL)
    wait(holder)
    status = wait(pid)
    return {
        "waits": waits,
        "untouched": untouched,
        "status": status,
        "sha": vectors_sha(folder),
        "leftovers": leftovers(folder),
    }


def file_size_limit(scratch: Path) -> dict[str, object]:
    """A limit on file sizes that the ids fit into and a shard does not; then without it."""
    folder, error = scratch / "limit", scratch / "limit.error"
    passages = make_passages(200)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
        encode_collection(StubEncoder(), passages, folder, shard_size=195, progress=False)

    status = wait(fork(limited, error))
    left = leftovers(folder)
    again = wait(
        fork(lambda: encode_collection(StubEncoder(), passages, folder, progress=False), error)
    )
    return {"status": status, "error": error.read_text(), "leftovers": left, "again": again}


def a_rank_dies(scratch: Path) -> dict[str, object]:
    """Two ranks; the second is killed while it encodes."""
    folder, log = scratch / "ranks", scratch / "ranks.log"
    log.touch()

    def rank(number: int) -> None:
        os.environ.update(RANK=str(number), WORLD_SIZE="2", LOCAL_RANK=str(number))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["FREE_PORT"])
        encode_here(folder, log, seconds=5 if number else 0.0)

    errors = [scratch / f"rank-{i}.error" for i in range(2)]
    pids = [fork(lambda i=i: rank(i), errors[i]) for i in range(2)]
    while str(pids[1]) not in log.read_text():
        time.sleep(0.05)
    os.kill(pids[1], signal.SIGKILL)
    wait(pids[1])
    started = time.perf_counter()
    status = wait(pids[0])
    return {
        "status": status,
        "seconds": time.perf_counter() - started,
        "error": errors[0].read_text(),
        "done": sorted(int(f.stem[6:]) for f in folder.glob("shard-*.json")),
    }


def memory_growth(scratch: Path) -> dict[str, object]:
    """Peak memory beyond what the process began with, for N and for 4 N passages from a file."""

    def measure(n: int, file: Path) -> None:
        text = "word " * 200  # 1 KB a passage: 4 N are 80 MB, which must not be in memory
        folder = scratch / f"passages-{n}"
        Dataset.from_generator(
            lambda: ({"_id": f"p{i}", "title": "", "text": f"{i} {text}"} for i in range(n)),
            cache_dir=str(folder),
        ).save_to_disk(str(folder / "saved"))
        passages = Dataset.load_from_disk(str(folder / "saved"))
        encode._LONG_RUN = 10**9
        before = resident_bytes()
        with PeakMemory() as memory:
            encode_collection(
                StubEncoder(), passages, scratch / f"flat-{n}", shard_size=1000, progress=False
            )
            file.write_text(str(memory.so_far - before))

    growth = {}
    for n in (20_000, 80_000):
        file = scratch / f"memory-{n}"
        assert wait(fork(lambda n=n, file=file: measure(n, file), scratch / "memory.error")) == 0
        growth[str(n)] = int(file.read_text())
    return growth


def main() -> None:
    logging.disable(logging.WARNING)
    scratch = Path(sys.argv[1])
    encode_here(scratch / "undisturbed")
    answer: dict[str, object] = {"undisturbed": vectors_sha(scratch / "undisturbed")}
    scenarios = (
        killed_at_random,
        killed_at_every_step,
        two_at_once,
        taken_over,
        file_size_limit,
        a_rank_dies,
        memory_growth,
    )
    for scenario in scenarios:
        started = time.perf_counter()
        answer[scenario.__name__] = scenario(scratch)
        answer[f"{scenario.__name__}_seconds"] = time.perf_counter() - started
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
