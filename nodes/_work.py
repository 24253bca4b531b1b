"""What the kinds work with, which `_late` imports at its first use."""

import torch as torch
from torch.optim.lr_scheduler import ReduceLROnPlateau as ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook as register_optimizer_step_post_hook
from torch.utils.data import DataLoader as DataLoader
from torch.utils.data import SequentialSampler as SequentialSampler

from graphtrain.data.batch import EarlyMover as EarlyMover
from graphtrain.data.batch import batch_mover as batch_mover
from graphtrain.data.batch import cast as cast
from graphtrain.data.batch import cut as cut
from graphtrain.data.batch import is_other as is_other
from graphtrain.data.batch import mapped as mapped
from graphtrain.data.batch import sample_counter as sample_counter
from graphtrain.data.batch import tensors_held as tensors_held
from graphtrain.data.batch import traces as traces
from graphtrain.data.common import Common as Common
from graphtrain.data.length import indexed_length as indexed_length
from graphtrain.data.loaders import loaders_of as loaders_of
from graphtrain.data.rank_local import RankLocal as RankLocal
from graphtrain.data.rank_local import own_data as own_data
from graphtrain.data.samplers import generators_of as generators_of
from graphtrain.data.samplers import samples_per_batch as samples_per_batch
from graphtrain.data.shares import Share as Share
from graphtrain.data.shares import WindowCounter as WindowCounter
from graphtrain.data.shares import Windows as Windows
from graphtrain.data.source import Indexed as Indexed
from graphtrain.data.source import Stateful as Stateful
from graphtrain.data.source import keeps_position as keeps_position
from graphtrain.data.source import source_of as source_of
from graphtrain.data.state import DataState as DataState
from graphtrain.data.together import Together as Together
from graphtrain.metrics.values import check_metric as check_metric
from graphtrain.metrics.values import check_names as check_names
from graphtrain.metrics.values import described as described
from graphtrain.metrics.values import detached as detached
from graphtrain.nodes._adapted import call_with as call_with
from graphtrain.nodes._adapted import shifted as shifted
from graphtrain.nodes._average import move_towards as move_towards
from graphtrain.nodes._compiled import Compiled as Compiled
from graphtrain.nodes._division import Drawing as Drawing
from graphtrain.nodes._division import Round as Round
from graphtrain.nodes._division import division_of as division_of
from graphtrain.nodes._evaluation import of_loader as of_loader
from graphtrain.nodes._evaluation import put_back as put_back
from graphtrain.nodes._evaluation import put_back_modes as put_back_modes
from graphtrain.nodes._evaluation import set_aside as set_aside
from graphtrain.nodes._in_turn import InTurn as InTurn
from graphtrain.nodes._norms import norms_of as norms_of
from graphtrain.nodes._predictions import added as added
from graphtrain.nodes._predictions import as_lines as as_lines
from graphtrain.nodes._predictions import as_tensors as as_tensors
from graphtrain.program.requests import SavePolicy as SavePolicy
from graphtrain.program.resources import StepOutputs as StepOutputs
from graphtrain.state.random import RandomAside as RandomAside
from graphtrain.state.random import capture_random as capture_random
from graphtrain.state.random import global_generators as global_generators
from graphtrain.state.random import restore_random as restore_random
from graphtrain.storage.encoding import Tensors as Tensors
from graphtrain.storage.encoding import UnsaveableError as UnsaveableError
from graphtrain.storage.encoding import pack as pack
from graphtrain.storage.predictions import PredictionsFile as PredictionsFile
from graphtrain.storage.retention import Retention as Retention
from graphtrain.storage.state_files import state_digest as state_digest

TORCH_ZERO_GRAD = torch.optim.Optimizer.zero_grad  # before anybody gives all optimizers another
