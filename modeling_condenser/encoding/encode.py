"""The encoding stage: a retriever and passages in, a folder of embeddings out.

Millions of passages take hours, in which processes are killed and disks fill up. Vectors are
therefore written shard by shard, each whole or not at all, and the same call goes on where an
earlier one ended: at most the shards in work are encoded twice. What is in the folder is checked
first: shards of another model, contract or collection are refused, damaged ones are done anew.

Several processes share the shards out between them, on one machine (`shard_workers.py`) or on
several (`ranks.py`), and claim each before they touch it (`claims.py`), so that two runs started on
one folder by mistake only help each other.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from datasets import Dataset
from tqdm.auto import tqdm

from modeling_condenser.collection.fingerprint import fingerprint_passages
from modeling_condenser.runs.whole_files import remove_partials

from .claims import Claims
from .crew import Crew, assemble_crew, stopped_at_the_end
from .embeddings import Embeddings
from .estimate import EncodingEstimate, estimate_encoding, refuse_full_disk
from .passage_ids import ID_ORDER_FILE, IDS_FILE, IDS_RECORD_FILE, find_ids_damage, write_ids
from .precision import FLOAT32
from .ranks import Ranks, join_ranks
from .record import RECORD_FILE, record_encoding
from .shard_workers import (
    EncoderOpener,
    PassageEncoder,
    Work,
    contract_of,
    describe_computation,
    encode_missing,
    find_missing,
    intra_op_threads,
)
from .shards import MANIFEST_FILE, Manifest, default_shard_size, record_name

logger = logging.getLogger(__name__)

_LONG_RUN = 10_000  # passages from which on a run begins with an estimate, which takes seconds
_WORTH_HELP = 15.0  # seconds of work from which on starting other processes pays
_ID_BATCH = 65_536


def encode_collection(
    retriever: PassageEncoder | EncoderOpener,
    passages: Dataset,
    folder: str | Path,
    *,
    shard_size: int | None = None,
    n_processes: int | None = None,
    devices: Sequence[str] | None = None,
    n_threads: int | None = None,
    progress: bool = True,
) -> Embeddings:
    """Encode passages into a folder, or go on with it, or open it if it is finished.

    The vectors are the same bits however many processes there are and however often they were
    killed, on the same kind of device. Memory does not grow with N, but for some 35 bytes an id
    while the ids are sorted.

    Under torchrun, or wherever RANK and WORLD_SIZE are set, every rank calls this alike, with one
    folder on a file system that all of them share; rank r encodes the shards i with
    i % WORLD_SIZE == r, by itself, on `devices[LOCAL_RANK]`, by default the GPU of that number.

    Args:
        retriever: a `Retriever`, or a `System`, which is opened on each device.
        passages: columns `_id`, `title`, `text`; N rows.
        folder: new, empty, or of an earlier call.
        shard_size: passages in a shard; by default the folder's, or some that suit N.
        n_processes: that encode, each with an encoder of its own; at least one a device. By default
            one a GPU or CPU core, started when the first shard shows that it pays.
        devices: such as `["cuda:0", "cuda:1"]`; by default all of the retriever's kind.
        n_threads: of torch in each process on a CPU; by default the folder's, or 1.
        progress: whether to show progress bars.

    Returns:
        The embeddings, whole and checked.

    Raises:
        ValueError: the folder holds something else, the passages do not fit, or a vector is not
            finite.
        OSError: there is too little space, or a file cannot be written.
        ChildProcessError: a process on this machine failed.
        ConnectionError: another rank failed.
    """
    folder = Path(folder)
    _check_passages(passages)
    _check_numbers(shard_size=shard_size, n_processes=n_processes, n_threads=n_threads)
    with join_ranks() as ranks:
        crew = assemble_crew(retriever, n_processes=n_processes, devices=devices, ranks=ranks)
        work = _plan(folder, passages, crew.encoder, shard_size, n_threads)
        _check_folder(folder, work.manifest)
        if ranks.size == 1 and (finished := _open_finished(folder, progress)):
            return finished
        folder.mkdir(parents=True, exist_ok=True)
        with Claims(folder) as claims:
            if ranks.is_first:
                _prepare(work, claims)
            ranks.wait_for_all()
            _check_shared(folder, work.manifest)
            shards = range(ranks.rank, work.manifest.n_shards, ranks.size)
            shows = progress and ranks.is_first
            missing = find_missing(work, claims, shards, progress=shows)
            _look_ahead(work, crew, missing, ranks)
            _encode(work, crew, claims, missing, progress=shows)
            ranks.wait_for_all()
            if ranks.is_first:
                with claims.of_folder():
                    remove_partials(folder, RECORD_FILE)
                    record_encoding(folder, work.manifest)
            ranks.wait_for_all()
        return Embeddings.open(folder)


def estimate_collection(
    retriever: PassageEncoder | EncoderOpener,
    passages: Dataset,
    *,
    shard_size: int | None = None,
    n_processes: int | None = None,
    devices: Sequence[str] | None = None,
    n_threads: int | None = None,
    index: str = "Flat",
) -> EncodingEstimate:
    """What `encode_collection` would take with the same arguments; writes nothing.

    Args:
        index: faiss factory string of the index that will be built from the embeddings.
        retriever, passages, shard_size, n_processes, devices, n_threads: see `encode_collection`.
    """
    _check_passages(passages)
    _check_numbers(shard_size=shard_size, n_processes=n_processes, n_threads=n_threads)
    crew = assemble_crew(retriever, n_processes=n_processes, devices=devices, ranks=Ranks())
    with intra_op_threads(n_threads or 1, crew.encoder):
        return estimate_encoding(
            crew.encoder,
            passages,
            shard_size=shard_size,
            n_processes=len(crew.devices),
            index=index,
        )


def _plan(
    folder: Path,
    passages: Dataset,
    encoder: PassageEncoder,
    shard_size: int | None,
    n_threads: int | None,
) -> Work:
    """What to do; what is not stated is as it was begun."""
    if (folder / MANIFEST_FILE).is_file():
        earlier = Manifest.load(folder)
        shard_size = shard_size or earlier.shard_size
        n_threads = n_threads or earlier.computation.get("n_threads")
    n_threads = n_threads or 1
    manifest = Manifest(
        retriever=encoder.fingerprint,
        contract=contract_of(encoder),
        passages=fingerprint_passages(passages),
        n_passages=len(passages),
        dimension=encoder.dimension,
        shard_size=shard_size or default_shard_size(len(passages)),
        computation=describe_computation(n_threads, encoder),
    )
    return Work(folder, manifest, passages, n_threads)


def _check_passages(passages: Dataset) -> None:
    lacking = {"_id", "title", "text"} - set(passages.column_names)
    if lacking or not len(passages):
        raise ValueError(
            f"{len(passages)} passages with the columns {', '.join(passages.column_names)}: "
            "expected at least one, with _id, title and text."
        )


def _check_numbers(**numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} is {number}, expected at least 1, or none for the default.")


def _check_folder(folder: Path, manifest: Manifest) -> None:
    """Refuse a folder that holds anything but these embeddings."""
    # Listed before the manifest is looked for, which another run writes before any other file.
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    if not (folder / MANIFEST_FILE).is_file():
        if any(not name.startswith(".") for name in names):
            raise ValueError(
                f"{folder} is not empty and holds no embeddings ({MANIFEST_FILE} is missing): "
                "choose another folder, so that nothing is overwritten."
            )
        return
    there = Manifest.load(folder)
    differences = _differences(there, manifest)
    if differences:
        raise ValueError(
            f"{folder} holds embeddings of something else: {'; '.join(differences)}. Choose "
            "another folder, or remove this one to encode anew."
        )
    if _computation(there) != _computation(manifest):
        logger.warning(
            "%s was begun with %s and goes on with %s: the last bits of its vectors can differ.",
            folder,
            _in_words(_computation(there)),
            _in_words(_computation(manifest)),
        )


def _computation(manifest: Manifest) -> dict[str, object]:
    """How a folder's vectors are computed; before dtype could be chosen, none was noted."""
    return {**manifest.computation, "dtype": manifest.computation.get("dtype", FLOAT32)}


def _differences(there: Manifest, now: Manifest) -> list[str]:
    found = []
    for name in sorted({*there.contract, *now.contract}):
        before, after = there.contract.get(name), now.contract.get(name)
        if before != after:
            found.append(f"the contract's {name} is {before!r} there and {after!r} now")
    before, after = (_computation(manifest)["dtype"] for manifest in (there, now))
    if before != after:
        found.append(f"the vectors are of {before} weights there and of {after} ones now")
    if there.dimension != now.dimension:
        found.append(f"vectors have {there.dimension} numbers there and {now.dimension} now")
    elif there.retriever != now.retriever and not found:
        found.append("the model's weights, tokenizer or modules are others")
    if there.n_passages != now.n_passages:
        found.append(f"{there.n_passages} passages there and {now.n_passages} now")
    elif there.passages != now.passages:
        found.append("ids, titles, texts or the order of the passages are others")
    if there.shard_size != now.shard_size:
        found.append(
            f"shards of {there.shard_size} passages there and of {now.shard_size} now (leave "
            "shard_size out to go on)"
        )
    return found


def _in_words(computation: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(computation.items()))


def _open_finished(folder: Path, progress: bool) -> Embeddings | None:
    """The embeddings, if they are whole; needs no right to write."""
    if not (folder / RECORD_FILE).is_file():
        return None
    try:
        embeddings = Embeddings.open(folder)
        embeddings.verify(progress=progress)
    except (FileNotFoundError, ValueError):
        return None
    logger.info("%s is finished.", folder)
    return embeddings


def _prepare(work: Work, claims: Claims) -> None:
    """Write manifest and ids, before hours are spent."""
    with claims.of_folder():
        _check_folder(work.folder, work.manifest)  # another run may have begun it just now
        if not (work.folder / MANIFEST_FILE).is_file():
            remove_partials(work.folder, MANIFEST_FILE)
            refuse_full_disk(work.folder, work.manifest, range(work.manifest.n_shards))
            work.manifest.save(work.folder)
        if (work.folder / IDS_RECORD_FILE).is_file():
            damage = find_ids_damage(work.folder, len(work.passages))
            if damage is None:
                return
            logger.warning("%s: %s; the ids are written anew.", work.folder, damage)
        for name in (IDS_FILE, ID_ORDER_FILE, IDS_RECORD_FILE):
            remove_partials(work.folder, name)
        write_ids(work.folder, _id_batches(work.passages))


def _id_batches(passages: Dataset) -> Iterator[pa.ChunkedArray]:
    ids = passages.select_columns(["_id"]).with_format("arrow")
    for table in ids.iter(batch_size=_ID_BATCH):
        yield table["_id"]


def _check_shared(folder: Path, manifest: Manifest) -> None:
    """Make sure that this rank sees what rank 0 wrote."""
    list(folder.iterdir())  # makes a network file system look again
    if not (folder / MANIFEST_FILE).is_file():
        raise FileNotFoundError(
            f"rank 0 has written {folder / MANIFEST_FILE}, but this rank does not see it: name a "
            "folder on a file system that all machines share."
        )
    _check_folder(folder, manifest)


def _look_ahead(work: Work, crew: Crew, missing: Sequence[int], ranks: Ranks) -> None:
    """Say what is to come, and refuse what the disk cannot hold."""
    manifest = work.manifest
    if missing:
        refuse_full_disk(work.folder, manifest)
    rows = sum(len(manifest.rows(shard)) for shard in missing)
    if ranks.size == 1 and 0 < len(missing) < manifest.n_shards:
        done = manifest.n_shards - len(missing)
        logger.info("%s: %d of %d shards are done.", work.folder, done, manifest.n_shards)
    if ranks.is_first and rows >= _LONG_RUN:
        with intra_op_threads(work.n_threads, crew.encoder):
            estimate = estimate_encoding(
                crew.encoder,
                work.passages,
                n_passages=rows * ranks.size,
                shard_size=manifest.shard_size,
                n_processes=len(crew.devices) * ranks.size,
            )
        logger.info("%s", estimate.in_words())


def _encode(work: Work, crew: Crew, claims: Claims, missing: list[int], *, progress: bool) -> None:
    """Encode the missing shards, with helpers where that is stated or pays."""
    if not missing:
        return
    sizes = {shard: len(work.manifest.rows(shard)) for shard in missing}
    total = sum(sizes.values())
    bar = tqdm(total=total, desc="encode", unit="passage", disable=not progress)
    started = time.perf_counter()
    steps = encode_missing(work, crew.encoder, claims, missing, patient=True)
    with bar, stopped_at_the_end() as helpers, closing(steps):
        if crew.is_stated:
            helpers += crew.call_helpers(work, missing)
        for _ in steps:
            left = [s for s in missing if not (work.folder / record_name(s)).is_file()]
            done = total - sum(sizes[shard] for shard in left)
            bar.update(done - bar.n)
            alone = (time.perf_counter() - started) * (total - done) / max(done, 1)
            if not crew.is_stated and not helpers and alone > _WORTH_HELP:
                helpers += crew.call_helpers(work, left)
            for helper in helpers:
                helper.check()
