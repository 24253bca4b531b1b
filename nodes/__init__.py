"""The built-in kinds, one file each, named after the kind. Files whose names begin with an underscore are helpers.

Promise: a kind is declared without torch, and its progress is all that it keeps between visits.

Stands on: ranks, kind, plan, storage, state, data, report, program.

Other rooms use:
    _optimizers: optimizers_of, parameters_of
    _training_step: CallsTrainingStep, loss_and_metrics
    end_evaluation: put_back
    train_batch: TrainBatch
"""
