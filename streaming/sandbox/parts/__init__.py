"""The parts of a cluster (ZooKeeper, bookies, brokers, S3): their programs, settings, processes and clients."""
