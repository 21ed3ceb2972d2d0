"""Rules that decide whether stored data may be deleted, and which class of finding the audit reports."""
