"""Records -> text, wide, json, jsonl, yaml, name, prometheus."""
