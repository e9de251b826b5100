"""Folders as the library `datasets` saves them; compared with what release 5.2.0 writes."""

import json

import pyarrow as pa


def save_dataset(folder, table, num_shards=1, batch_rows=1000):
    """Write what `Dataset.save_to_disk(folder, num_shards=num_shards)` writes."""
    folder.mkdir(parents=True)
    features = {"text": {"dtype": "string", "_type": "Value"}}
    schema = table.schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    names = [f"data-{index:05d}-of-{num_shards:05d}.arrow" for index in range(num_shards)]
    rows = -(-table.num_rows // num_shards)
    for index, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            writer.write_table(table.slice(index * rows, rows).cast(schema), max_chunksize=batch_rows)
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "f07812ad0e148f87",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state, indent=2, sort_keys=True))
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    (folder / "dataset_info.json").write_text(json.dumps(info, indent=2))


def save_dataset_dict(folder, tables, **options):
    """Write what `DatasetDict.save_to_disk(folder)` writes."""
    folder.mkdir(parents=True)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(tables)}))
    for split, table in tables.items():
        save_dataset(folder / split, table, **options)
