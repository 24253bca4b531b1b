"""The state of objects: found, compared, captured and restored.

Promise: what is reachable from the set-up and has changed is saved without a declaration, or reported by name.

Stands on: storage.

Other rooms use:
    changes: changes_since, NO_CHANGES, OTHER_SUBMODULES, restore_changes
    classes: category_of, CONSTANTS, is_users, is_value, RULES
    codec: MALFORMED, parts_in, StateReader, StateWriter
    content: content_hash, ContentHash
    generators: AnyGenerator, capture_random, fitted_random, generator_of, HOST, named_generators, PreservedRandom,
        restore_random, same_state, seed_all, seed_everything, seed_the_rest, torch_seed
    modules: capture_module, fit_buffers, restore_module
    objects: MISFITS, SavedObjects
    optimizers: kept_groups, NO_RESUME, put_gradient
    reachable: contents_of, is_within, keeps_state, OF_THE_COMPILER, parts_of, place_of, Reachable, REMEDY
    snapshot: compared_data, data_contents, StateSnapshot
    weights: dtype_and_shape, fitting, load_weights, local_part, uncompiled, weights_of
"""
