"""Protobuf messages that Pulsar and BookKeeper store; the generated modules are committed. To generate them again:

python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. udfs/proto/*.proto
"""
