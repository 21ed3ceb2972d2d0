"""The sweep of transaction-buffer snapshots, which sends tombstones to the brokers' snapshot topics."""
