"""Adds the Java archives to a CycloneDX list of an environment: `python deploy/sbom.py FROM INTO`."""

import json
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from streaming.spark.ivy import Artifact
from streaming.spark.jars import CONNECTOR, S3A_OF_SPARK_3, S3A_OF_SPARK_4


def with_java_archives(bom: dict[str, Any]) -> dict[str, Any]:
    """Return the list with the archives that `ledger-reaper jars` fetches for its PySpark; the program depends on them.

    Spark's own archives are part of the Python package pyspark.
    """
    program = bom["metadata"]["component"]["bom-ref"]
    (spark,) = (each["version"] for each in bom["components"] if each["name"] == "pyspark")
    needed = (CONNECTOR, *S3A_OF_SPARK_3) if spark.startswith("3.5.") else S3A_OF_SPARK_4
    archives = [_component(artifact) for artifact in needed]
    added = [archive["bom-ref"] for archive in archives]
    return bom | {
        "components": [*bom["components"], *archives],
        "dependencies": [
            each | {"dependsOn": sorted([*each.get("dependsOn", ()), *added])} if each["ref"] == program else each
            for each in bom["dependencies"]
        ]
        + [{"ref": reference} for reference in added],
    }


def _component(artifact: Artifact) -> dict[str, Any]:
    reference = f"pkg:maven/{artifact.organisation}/{artifact.name}@{artifact.revision}"
    return {
        "type": "library",
        "bom-ref": reference,
        "group": artifact.organisation,
        "name": artifact.name,
        "version": artifact.revision,
        "purl": reference,
        "hashes": [{"alg": "SHA-512", "content": artifact.sha512}],
    }


def main() -> None:
    """Read the list, write the complete one, and validate it against the schema of its version."""
    source, into = map(Path, sys.argv[1:])
    bom = with_java_archives(json.loads(source.read_text(encoding="utf-8")))
    text = json.dumps(bom, indent=2) + "\n"
    if fault := JsonStrictValidator(SchemaVersion.from_version(bom["specVersion"])).validate_str(text):
        sys.exit(f"{into} would be no valid list: {fault}")
    into.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
