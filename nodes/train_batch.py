"""Forward and backward for one batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.errors import UsageError
from graphtrain.kind import StepFunction, node, progress
from graphtrain.kind.declaration import StepRequest
from graphtrain.kind.parameter import Above
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import optimizers_of, parameters_of
from graphtrain.nodes._precision import scaled
from graphtrain.nodes._training_step import CallsTrainingStep, count_and_metrics, loss_and_metrics, pass_on_request

if TYPE_CHECKING:
    import torch

    from graphtrain.plan.plan import PlanNode
    from graphtrain.program import resources
    from graphtrain.program.agreement import Agreement
    from graphtrain.report.recorder import Recorder
else:
    resources = lazy_import("graphtrain.program.resources")
    torch = lazy_import("torch")


@node(writes="loss", effects="backward", varying=("unfrozen", "turn"))
class TrainBatch(CallsTrainingStep):
    """Call ``training_step(model, batch)``, divide its loss by `window`, and run backward.

    Reads:
        training_step: returns the loss, a scalar tensor, or a mapping with `loss` and metrics (numbers or scalars).
        window: backward passes per optimizer step; with 1, or with `per`, the loss is not divided.
        metric_objects: those whose names have no prefix or the prefix ``epoch/`` are updated with the values that
            `training_step` returns under the names of the parameters of their `update`. Default: none.
        loss_scale: factor for the loss before backward, by which the node `unscale` divides the gradients. Default:
            none.

    Arguments:
        precision: "32-true" computes in the dtypes of the model and the batch. "bf16-mixed" computes matrix products in
            bfloat16, and "16-mixed" in float16, by running `training_step` under torch's autocast; weights, gradients
            and optimizer state stay in float32. "16-mixed" needs loss scaling, which the overlay `fp16` adds.
            Default: "32-true".
        compile: True runs `training_step` and its backward pass through ``torch.compile``; the model itself and
            evaluation do not change. Every batch shape and every Python number in a batch is compiled separately, so
            that the result for a batch does not depend on earlier batches and a resume is exact. Beyond
            ``torch._dynamo.config.recompile_limit`` (8) shapes, further ones run uncompiled, and which ones depends on
            earlier batches, so pad to a few shapes. Default: False.
        keep: slots returned by `training_step` that are not cleared at the beginning of an epoch. Default: none.
        per: what the loss is a sum over: the name under which `training_step` returns the count, a number or a scalar
            tensor, or "samples" for the samples of the batch. A node of the kind `divide` divides the gradients of a
            window by `window_count`, as in the overlay `token_windows`; metrics are means over the count. Default:
            none, the loss is a mean, and is divided by `window`.
        only_own: True computes gradients only for the parameters of `optimizer`: those of other optimizers do not
            require gradients while this node runs, as between the two networks of a GAN. Default: False.
        unfrozen: if `optimizer` holds several optimizers, the number of them, from the first, whose parameters are
            trained; those of the others do not require gradients while this node runs. Default: all.
        turn: with `only_own` and several optimizers, the index, from 0, of the one whose parameters get gradients.
            Default: all.
        skip_none: True skips a batch for which `training_step` returns None: there is no backward pass, and the batch
            counts in its window, as if its gradients were zeros. Default: False, it is an error.

    Writes:
        loss: the loss before the division, detached; None for a skipped batch.

    Guard fields:
        window_count: with `per`, the count of the window so far, on this rank.

    If it returns ``loss, graphtrain.STOP``, the batch is trained on and then the run ends; with
    ``graphtrain.END_EPOCH``, the epoch ends.

    Further values that `training_step` returns can be written to slots with `writes`, as in ``writes = { hidden =
    "hidden" }``. Tensors are detached, and the values are not recorded as metrics. A `training_step` with an argument
    `hidden` then receives the slot.

    In a graph with several such nodes, the metrics of those that are not named `train_batch` are prefixed with the name
    of the node: ``generate/loss``.

    Raises:
        UsageError: `training_step` did not return a loss; `turn` is the index of no optimizer; the device does not
            support the precision.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("train_batch", precision="bf16-mixed")
    >>> graph.check()
    []
    """

    compile: bool = False
    keep: tuple[str, ...] = ()
    per: str | None = None
    only_own: bool = False
    unfrozen: Annotated[int, Above(0)] | None = None
    turn: int | None = None
    skip_none: bool = False

    window_count: float = progress(0.0, restarts="gradients", in_digest=False)  # each rank has counted its own

    _optimizer: Any
    _all_optimizers: Callable[[], list[Any]] | None
    _backward: Callable[[Any], None]  # with several ranks, it may begin to exchange gradients

    @staticmethod
    def refuse_settings(node: PlanNode, *, ranks: bool) -> None:
        """Raise for settings with which a run could not start: the checks call it."""
        parameters, reads = node.parameters, {read.name: ref for read, ref in node.reads}
        if parameters["precision"] == "16-mixed" and reads["loss_scale"].category == "resource":
            raise UsageError(
                f'{node.path}.precision "16-mixed": nothing scales the loss, so small gradients would be 0 in float16',
                'add the overlay that scales it: --overlay fp16, in Python graph.overlay("fp16"); or use "bf16-mixed"',
            )

    def setup(
        self,
        recorder: Recorder,
        device: Any,
        metric_prefix: str = "",
        asks: Callable[[StepRequest], None] | None = None,
        metric_objects: Mapping[str, Any] | None = None,
        loss_scale: float | None = None,
        optimizer: Any = None,
        run_optimizers: Callable[[], list[Any]] | None = None,
        ranks: Agreement | None = None,
        backward: Callable[[Any], None] | None = None,
    ) -> None:
        super().setup(recorder, device, metric_prefix, asks, metric_objects)
        self._optimizer, self._all_optimizers = optimizer, run_optimizers
        self._backward = torch.Tensor.backward if backward is None else backward
        if self.only_own and optimizer is None:
            message = "train_batch.only_own = true: the node needs an `optimizer`, and none is supplied"
            raise UsageError(message, 'name it, as in reads = { optimizer = "d_optimizer" }')
        if self.skip_none and ranks is not None and ranks.sharded:
            raise UsageError(
                "train_batch.skip_none = true: every rank must take part in the backward pass of a sharded model",
                "return a loss of zero, as in `torch.where(is_skipped, 0, loss)`, and leave skip_none out",
            )

    def __call__(
        self,
        model: Any,
        batch: Any,
        training_step: StepFunction,
        samples: int,
        window: int = 1,
        loss_scale: float | None = None,
    ) -> Any:
        frozen = self._freeze_others() if self.only_own or self.unfrozen is not None else ()
        try:
            result = training_step(model, batch) if self._caller is None else self._caller(training_step, model, batch)
            if type(result) is tuple:
                result = pass_on_request(result, self._asks)
            if result is None and self.skip_none:
                return None
            if self._objects is not None:
                result = self._objects.update(result, "training_step")
            loss, metrics = loss_and_metrics(result, "training_step")
            count: Any = samples
            sums: tuple[str, ...] = ()
            if self.per is not None:
                count, metrics = count_and_metrics(metrics, self.per, samples, "training_step")
                sums = (f"{self._prefix}loss",)
                # Adding 0.0 to a tensor of integers would turn it into 32-bit floats.
                is_first = not torch.is_tensor(self.window_count) and not self.window_count
                self.window_count = count if is_first else self.window_count + count
            share = loss
            if window != 1 and not sums:  # a division costs 5 us with its backward
                if not window > 0:
                    hint = 'it is the size of the window: reads = { window = "accumulate.window" }'
                    raise UsageError(f"window: expected a number of backward passes > 0, got {window}", hint)
                share = loss / window
            self._backward(share if loss_scale is None else scaled(share, loss_scale))
            value = loss.detach()
            if metrics or self._prefix or sums:
                self._means.add(self._prefixed({"loss": loss, **metrics}), count, sums=sums)
            else:
                self._means.add(value, samples)
            return value
        except RuntimeError as error:
            if "a second time" in str(error):
                error.add_note("`train_batch` runs backward itself: return the loss, without calling loss.backward()")
            raise
        finally:
            for parameter in frozen:
                parameter.requires_grad = True

    def idle(self, model: Any, batch: Any, training_step: Any, *rest: Any) -> None:
        """Take part in the passes of a sharded model, on a rank without a batch, with the first batch of the round."""
        step: Any = training_step.step if isinstance(training_step, resources.StepOutputs) else training_step
        frozen = self._freeze_others() if self.only_own or self.unfrozen is not None else ()
        try:
            result = step(model, batch) if self._caller is None else self._caller(step, model, batch)
            result = pass_on_request(result, None)
            if self._objects is not None:
                result = self._objects.drop_inputs(result)
            loss, _ = loss_and_metrics(result, "training_step")
            # Not loss * 0, which is NaN for a loss that is not finite.
            zero = torch.where(torch.zeros_like(loss, dtype=torch.bool), loss, torch.zeros_like(loss))
            zero.backward()  # type: ignore[no-untyped-call]
        finally:
            for parameter in frozen:
                parameter.requires_grad = True

    def _freeze_others(self) -> list[Any]:
        """Set `requires_grad = False` on parameters of other optimizers; returns those that it changed."""
        optimizers = self._all_optimizers() if self.only_own and self._all_optimizers is not None else []
        named = optimizers_of(self._optimizer)
        if self.turn is not None and not -len(named) <= self.turn < len(named):
            raise UsageError(f"turn: expected an index below {len(named)}, the number of optimizers, got {self.turn}")
        trained = named[: self.unfrozen] if self.turn is None else (named[self.turn],)
        trained_ids = {id(parameter) for parameter in parameters_of(trained)}
        candidates = parameters_of([*named, *optimizers])
        frozen = [each for each in candidates if each.requires_grad and id(each) not in trained_ids]
        for parameter in frozen:
            parameter.requires_grad = False  # the attribute: the method refuses a lazy parameter
        return frozen
