"""The files of a run: checkpoints, rows, status, predictions.

Promise: plain msgpack and safetensors with checksums, renamed into place; nothing in a file is imported or called; the
newest sound checkpoint is found.

Stands on: ranks, graph.

Other rooms use:
    checkpoint: Checkpoint, new_folder, read_checkpoint, reason_of, write_manifest
    encoding: Decoder, Encoded, Encoder, is_saveable, LEAST_ADDRESS, MOST_DEPTH, pack, SavedTensor, tagged, Tensors,
        unpack, UnsaveableError
    files: readable_failure, replace_file, uncollected, write_output
    manifest: checkpoint_paths, Manifest, MANIFEST_FILE, RANK_FACTS, read_manifest, SavedCheckpoint
    named: checkpoint_folder, graph_of, holds_a_graph, lineage_in, NEWEST, newest_in, saved_graph
    pieces: part_of, Piece, PieceFiles
    predictions: Predictions
    rank_files: common_names, digest_of_ranks, manifest_of, write_files
    retention: Retention
    run_directory: ACTIVE, BEST, best_in, CHECKPOINTS_FOLDER, last_status, METRICS_FILE, NODES_FILE, read_starts,
        read_status, RowsFile, STARTS_FILE, STATUS_FILE, STATUS_SECONDS
    run_files: RunFiles
    state_files: local_of, name_of_part, Sections, split, StagedState, state_digest
    strides: DEVICES, flat_bytes, without_repeats
    tensor_files: Buffers, layout_of
    value_types: DTYPES, STANDARD, type_of, TYPES
    weight_files: open_weights, stored_weights, StoredTensor, weights_of_model, write_weights
"""
