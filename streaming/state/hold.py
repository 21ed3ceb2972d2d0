"""Why nothing is deleted at the moment, as a file beside the receipts: for whoever asks those, not ZooKeeper."""

import contextlib
import json

import pyarrow as pa
import pyarrow.fs as pafs

from streaming.state.filesystem import open_filesystem

_FILE = "held.json"


def note(state_dir: str, why: str, *, now_ms: int) -> None:
    """Write why and since when; "" takes the note away. What can't be written is not worth stopping for."""
    with contextlib.suppress(OSError, pa.ArrowInvalid):
        filesystem, root = open_filesystem(state_dir)
        path = f"{root}/{_FILE}"
        if why:
            filesystem.create_dir(root, recursive=True)
            with filesystem.open_output_stream(path) as out:
                out.write(json.dumps({"why": why, "since_ms": now_ms}).encode())
        elif filesystem.get_file_info(path).type is not pafs.FileType.NotFound:
            filesystem.delete_file(path)


def noted(state_dir: str) -> tuple[str, int]:
    """(why, since ms) as noted last; ("", 0) where nothing is."""
    try:
        filesystem, root = open_filesystem(state_dir)
        with filesystem.open_input_stream(f"{root}/{_FILE}") as stream:
            said = json.loads(stream.read())
        return str(said["why"]), int(said["since_ms"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", 0
