"""Compiles streaming/spark/java into credentials.jar, which the connector's client needs for some kinds of credentials.

The jar is part of the source, since an installation has no Java compiler: `make credentials-jar`, with Java 17.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from streaming.spark.jars import CREDENTIALS, jars

SOURCE = CREDENTIALS.parent / "java" / "FileAuthentication.java"
_DAY = (1980, 1, 1, 0, 0, 0)  # the same file for the same source


def compiled(into: Path) -> None:
    """Write the jar; it also contains its source."""
    import pyspark

    libraries = [*Path(pyspark.__file__).parent.glob("jars/jackson-*.jar"), *jars()]
    with tempfile.TemporaryDirectory() as folder:
        classpath = ":".join(map(str, libraries))
        options = ("-d", folder, "--release", "17", "-g:none", "-proc:none", "-Xlint:-deprecation", "-nowarn")
        subprocess.run(["javac", *options, "-cp", classpath, str(SOURCE)], check=True, stderr=sys.stderr)
        files = {path.relative_to(folder): path for path in sorted(Path(folder).rglob("*.class"))}
        files[Path("ledgerreaper") / SOURCE.name] = SOURCE
        with zipfile.ZipFile(into, "w") as jar:
            for name, path in files.items():
                jar.writestr(zipfile.ZipInfo(str(name), _DAY), path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    compiled(CREDENTIALS)
