import errno

import pytest

from streaming.errors import ConfigError, SafetyError, UnavailableError
from streaming.rocketmq.failures import is_file_gone, our_errors

OF_A_TASK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure
Traceback (most recent call last):
  File "somewhere.py", line 1, in write
Exception: IO error: No space left on device: While appending to file: /x/part: No space left on device

Driver stacktrace:"""


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/x"), UnavailableError, "the disk is full .*free space"),
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/x"), UnavailableError, "the disk is full .*quota.*free space"),
        (RuntimeError(OF_A_TASK), UnavailableError, r"the disk is full \(Exception: IO error: .*/x/part.*free space"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x"),
            ConfigError,
            "this user has no permission .*broker's user",
        ),
        (
            RuntimeError("IO error: While open a file: /x: Permission denied"),
            ConfigError,
            "this user has no permission",
        ),
        (OSError(errno.EROFS, "Read-only file system", "/x"), ConfigError, "this file system is read-only .*/x"),
        (SafetyError("as it was"), SafetyError, "as it was"),
    ],
    ids=["disk", "quota", "disk of a task", "right", "right of RocksDB", "read-only", "one of ours"],
)
def test_an_error_that_an_operator_can_correct_has_one_line(
    raised: Exception, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=f"^{said}") as caught, our_errors():
        raise raised
    assert "\n" not in str(caught.value)


def test_an_unexpected_error_stays_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), our_errors():
        raise ZeroDivisionError


def test_a_missing_file_is_distinguished_from_other_faults_also_in_a_task() -> None:
    gone = FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/00000000000000000000")
    assert is_file_gone(gone)
    assert is_file_gone(RuntimeError(f"Job aborted\nFileNotFoundError: {gone}\nDriver stacktrace:"))
    assert not is_file_gone(RuntimeError("FileNotFoundError is what it might have been"))
    assert not is_file_gone(PermissionError(errno.EACCES, "Permission denied"))
