"""What every run writes and shows: atomic files and folders, its run folder, progress bars.

Files and folders are written beside their place and then renamed.

A run folder holds recipe.yaml (settings), run.json (record, hash of the data), a log and
checkpoints. Once something is stored, it belongs to one run: other settings or other data are
refused. A checkpoint is complete if it has a readable trainer_state.json, which transformers writes
last.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import psutil
import yaml
from filelock import FileLock
from tqdm.auto import tqdm

RECIPE_FILE = "recipe.yaml"
RUN_FILE = "run.json"
MODEL_FOLDER = "model"
LOG_FILE = "log.json"

DATA = "data_sha256"  # in the record: the hash of all that the run reads
BATCH = "global_batch"  # in the record: blocks, pairs or tokens of a step over all processes
PROCESSES = "processes"  # in the record: that train
_STATE_FILE = "trainer_state.json"

# Settings whose product with the number of processes is the batch of a step.
_OF_BATCH = {"gradient_accumulation_steps", "per_device_train_batch_size", "tokens_per_batch"}

# Settings that may change when a run is resumed, because its result does not depend on them, but
# for the rounding of sums and the draws of dropout.
_MAY_DIFFER = set(
    "activation_checkpointing activation_checkpointing_kwargs blocks_folder cache_chunk_size "
    "dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers "
    "dataloader_pin_memory dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers "
    "ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout devices "
    "disable_tqdm do_predict do_train embeddings gradient_checkpointing "
    "gradient_checkpointing_kwargs hub_always_push hub_model_id hub_private_repo hub_revision "
    "hub_strategy log_level log_level_replica log_on_each_node logging_dir logging_first_step "
    "logging_steps mini_batch_size preprocessing_workers project push_to_hub readiness "
    "report_to resume_from_checkpoint run_name save_steps save_strategy save_total_limit "
    "torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps "
    "trackio_bucket_id trackio_space_id trackio_static_space_id use_cpu work_folder".split()
)
_OF_EVALUATION = {  # may differ, too, if no evaluation chooses the model
    *"do_eval eval_accumulation_steps eval_delay eval_on_start eval_steps eval_strategy".split(),
    "per_device_eval_batch_size",
}
_NOT_RECORDED = {"output_dir", "hub_token"}  # the place of the folder, and a secret
_PACKAGES = (
    "condenser torch transformers datasets sentence-transformers faiss-cpu bm25s ir-measures"
)
IDENTITY_FILE = "identity.json"  # of a stored index
# Folders of sentence-transformers (empty) and of TensorBoard's logs.
_NO_RESULTS = {"eval", "runs"}
_PROCESS_FILE = ".process"  # machine and process of a run that may not have stored anything yet
_BAR_DELAY = 1  # seconds of work before a bar appears
_ARE_SHOWN = ContextVar("_ARE_SHOWN", default=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file atomically; a failed block leaves no file, or the old one."""
    partial = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Write a folder atomically: yield a new folder, which replaces it if the block succeeds."""
    if folder.is_file():
        raise FileExistsError(f"{folder} is a file: name a folder.")
    if folder.name in ("", ".."):
        raise ValueError(f"{folder} would be replaced as a whole: name a new folder in it.")
    folder = folder.resolve()  # a link stays one
    if os.path.ismount(folder):  # Path.is_mount is not for Windows
        raise ValueError(
            f"{folder} is a mounted volume, and is written as a whole: name a new folder in it."
        )
    partial = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process
    partial.mkdir(parents=True)
    try:
        yield partial
        _replace_folder(folder, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace_folder(folder: Path, new: Path) -> None:
    """Move a complete folder to the place of an earlier one, which is removed."""
    earlier = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(earlier, ignore_errors=True)
        folder.replace(earlier)
    try:
        new.replace(folder)
    except OSError:
        if earlier.exists():
            earlier.replace(folder)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def build_once(
    folder: Path, identity: Mapping[str, object], build: Callable[[Path], object]
) -> None:
    """Build an index into a folder, unless the folder holds the index of this identity.

    The identity is everything that the index depends on. Another index is replaced. Processes that
    need the same index wait for the first one.
    """
    if read_json(folder / IDENTITY_FILE, None) == identity:
        return
    with folder_lock(folder):
        if read_json(folder / IDENTITY_FILE, None) == identity:
            return
        with atomic_folder(folder) as new:
            build(new)
            write_json(new / IDENTITY_FILE, identity)


def folder_lock(folder: Path) -> FileLock:
    """A lock, in a file beside a folder, of those who replace the folder."""
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(folder.with_name(f".{folder.name}.lock"))


def read_json(file: Path, otherwise: Any) -> Any:
    """The content of a JSON file; `otherwise` if there is no such file."""
    if not file.is_file():
        return otherwise
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}.") from error


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically."""
    with atomic_file(path) as file:
        file.write((json.dumps(content, indent=2, sort_keys=True) + "\n").encode())


def checksum_file(file: Path) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_run_folder(
    folder: Path,
    settings: Mapping[str, Any],
    data: str | None = None,
    *,
    batch: int | None = None,
) -> None:
    """Check that a run with these settings can start or continue in a folder.

    Args:
        folder: the output folder of the run.
        settings: of the run, as its caller stated them.
        data: hash of all that the run reads, if it is known yet (`hash_data`).
        batch: of a step over all processes, if nothing else matters of the settings that it is the
            product of: then another number of processes may continue the run.

    Raises:
        ValueError: the folder holds other files, or results of a run with other settings, data,
            batch or, without a batch, number of processes that trained.
    """
    if not (folder / RECIPE_FILE).is_file():
        _check_new(folder)
    elif not _is_bare(folder) and (changed := _find_changes(folder, settings, data, batch)):
        raise ValueError(
            f"{folder} holds another run ({', '.join(changed)}). Choose another output_dir, or "
            "continue the run with its own settings, model and data."
        )


def _is_bare(folder: Path) -> bool:
    """Whether a run ended before it stored anything, as after an error in its first steps."""
    stored = {file.name for file in folder.glob("[!.]*")}
    if stored - {RECIPE_FILE, RUN_FILE, LOG_FILE, *_NO_RESULTS}:
        return False
    try:
        machine, process = (folder / _PROCESS_FILE).read_text().split()
    except (FileNotFoundError, ValueError):
        return True
    is_here = machine == platform.node() and int(process) != os.getpid()
    return not (is_here and psutil.pid_exists(int(process)))


def _find_changes(
    folder: Path, settings: Mapping[str, Any], data: str | None, batch: int | None
) -> list[str]:
    """What the run of a folder has other than `check_run_folder` was given."""
    now, then = _comparable(settings), _comparable(stored_settings(folder))
    record = read_run(folder)
    is_compared_below = batch is not None and record.get(BATCH) is not None
    if data is None or is_compared_below:
        for name in _OF_BATCH:  # compared by their product, once that is known
            now.pop(name, None)
            then.pop(name, None)
    changed = [
        f"{name}: {then.get(name, 'not set')!r} then, {now.get(name, 'not set')!r} now"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
    stored = record.get(DATA)
    if data is not None and stored not in (None, data):
        changed.append(f"model or data: {stored[:12]} then, {data[:12]} now")
    processes, is_continued = record.get(PROCESSES), last_checkpoint(folder) is not None
    is_continued &= data is not None and not (folder / MODEL_FOLDER).is_dir()
    if is_continued and batch is None and processes not in (None, _count_processes()):
        changed.append(f"processes: {processes} then, {_count_processes()} now")
    stored_batch = record.get(BATCH)
    if batch is not None and stored_batch not in (None, batch):
        advice = ""
        if stored_batch % batch == 0:
            times = stored_batch // batch
            advice = f"; {times} times per_device_train_batch_size or gradient_accumulation_steps"
        changed.append(f"batch over all processes: {stored_batch} then, {batch} now{advice}")
    return changed


def claim_run_folder(
    folder: Path, settings: Mapping[str, Any], data: str, *, batch: int | None = None
) -> None:
    """Start a run in a folder, or continue it: `check_run_folder`, then store settings and data."""
    check_run_folder(folder, settings, data, batch=batch)
    if DATA not in read_run(folder) or _find_changes(folder, settings, data, batch):
        start_run(folder, settings, data, batch=batch)


def start_run(
    folder: Path, settings: Mapping[str, Any], data: str, *, batch: int | None = None
) -> None:
    """Store settings and data of a run that begins, in place of those of an earlier one."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / RECIPE_FILE) as file:
        file.write(yaml.safe_dump(_plain(settings), sort_keys=True).encode())
    record = {PROCESSES: _count_processes()} if batch is None else {BATCH: batch}
    write_json(folder / RUN_FILE, {**describe_machine(), DATA: data, **record})
    (folder / _PROCESS_FILE).write_text(f"{platform.node()} {os.getpid()}")


def _count_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))  # of torchrun


def hash_data(*parts: object) -> str:
    """SHA-256 of what a run reads: fingerprints, names and numbers, whose order matters."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _check_new(folder: Path) -> None:
    """Raise a ValueError unless a folder is new or empty."""
    # Another process of the same run may be writing the recipe just now.
    if any(RECIPE_FILE not in file.name for file in folder.glob("*")):
        raise ValueError(
            f"{folder} is not empty and holds no run ({RECIPE_FILE} is missing). Choose another "
            "output_dir."
        )


def stored_settings(folder: Path) -> dict[str, Any]:
    """The settings of the run in a folder; empty if there is none."""
    file = folder / RECIPE_FILE
    return (yaml.safe_load(file.read_text(encoding="utf-8")) or {}) if file.is_file() else {}


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run's result depends on."""
    # Fine-tuning on a collection chooses by default.
    chooses = settings.get("load_best_model_at_end", "collection" in settings)
    may_differ = _MAY_DIFFER if chooses else _MAY_DIFFER | _OF_EVALUATION
    return {name: value for name, value in _plain(settings).items() if name not in may_differ}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are written: without place and secrets, paths as text, tuples as lists."""
    recorded = {name: value for name, value in settings.items() if name not in _NOT_RECORDED}
    return json.loads(json.dumps(recorded, default=str))


def read_run(folder: Path) -> dict[str, Any]:
    """The record of a run; empty before it is claimed."""
    return read_json(folder / RUN_FILE, {})


def describe_machine() -> dict[str, Any]:
    """Versions and hardware, for the run's record and the model card."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES.split():
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    cpuinfo = Path("/proc/cpuinfo")  # on Linux
    cpu = re.search(r"model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.is_file() else "")
    name, gpus = cpu[1] if cpu else platform.machine(), []
    if torch := sys.modules.get("torch"):  # BM25 does not import it, and uses no GPU
        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    hardware = {"cpu": name, "cores": os.cpu_count(), "gpus": gpus}
    return {"versions": versions, "hardware": hardware}


def record_run(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add facts to the record of a run, with versions and hardware."""
    write_json(folder / RUN_FILE, {**read_run(folder), **describe_machine(), **facts})


def is_complete(checkpoint: Path) -> bool:
    """Whether a checkpoint was written to its end."""
    try:
        return bool(json.loads((checkpoint / _STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def all_checkpoints(run_folder: Path) -> list[Path]:
    """The checkpoints of a run, complete or not, oldest first."""
    return sorted(filter(Path.is_dir, run_folder.glob("checkpoint-*")), key=_step)


def last_checkpoint(run_folder: Path) -> Path | None:
    """The newest complete checkpoint of a run; None if there is none."""
    return next(filter(is_complete, reversed(all_checkpoints(run_folder))), None)


def chosen_checkpoint(run_folder: Path) -> Path | None:
    """The checkpoint that a run without a model has come to: the best, if it loads that at its end.

    None if there is no complete one.
    """
    last, settings = last_checkpoint(run_folder), stored_settings(run_folder)
    # Fine-tuning loads it by default, and then no metric is stated.
    loads_best = settings.get("load_best_model_at_end", "metric_for_best_model" not in settings)
    if last and loads_best:
        step = read_json(last / _STATE_FILE, {}).get("best_global_step")
        best = run_folder / f"checkpoint-{step}"
        return best if is_complete(best) else last
    return last


def _step(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else -1


def bar(items: Iterable[Any] | None, description: str, *, unit: str, **options: Any) -> tqdm:
    """Iterate with a bar of tqdm, which appears after a second; `options` are those of tqdm."""
    settings: Any = {"unit": unit, "delay": _BAR_DELAY, **options}
    if not _ARE_SHOWN.get():
        settings["disable"] = True  # False would override the environment variable TQDM_DISABLE
    return tqdm(items, description, **settings)


@contextmanager
def show_bars(are_shown: bool) -> Iterator[None]:
    """Show or hide the bars of a `with` block; a block within a hidden one is hidden, too."""
    token = _ARE_SHOWN.set(are_shown and _ARE_SHOWN.get())
    try:
        yield
    finally:
        _ARE_SHOWN.reset(token)
