"""Where batches come from, and their position.

Promise: an epoch can be opened in its middle with the batches of an uncut run, or the run says why not.

Stands on: storage, state.

Other rooms use:
    batch: as_tuples, count_samples, move, NESTS, NOTHING, trace
    fingerprint: data_changes, fingerprints
    loader: derived_seed, Loader
    loaders: by_name, is_data, loaders_of
    samplers: all_generators, generator_objects, length_of, parts_of
    shares: RankBatches, round_size
    source: ended_early, keeps_position, Numbered, Seeds, Source, source_of, Stateful
    state: DataState, WithDataState
    together: empty_loader, Together
"""
