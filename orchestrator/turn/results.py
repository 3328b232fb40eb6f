"""The result that a turn owes, looked for in an answer of the model: in the call that delivers it, or in the answer's text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.event import Bodies, Outcome
from orchestrator.core.fact import ResultDelivered, ResultRefused
from orchestrator.core.steps import RESULT_TRIES
from orchestrator.perform import failed, plain_json
from orchestrator.ports import Answer, ToolBox, WrongCall
from orchestrator.turn.hands import Hands

TAKEN = Outcome("completed", "The result was delivered.")
ONE_IS_ENOUGH = failed("RESULT_DELIVERED", "The result was delivered already, in this same answer.")
CUT = "The answer was cut at its length limit. Deliver a shorter result."


@dataclass(frozen=True, slots=True)
class Taken:
    """What an answer means for the result. `outcomes`: of the calls that deliver it, by place. `problem`: why it brought none that fits."""

    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    delivered: bool = False
    result: object = None
    problem: str = ""

    def ends(self, answer: Answer) -> bool:
        """Whether nothing but the result was asked for."""
        return self.delivered and len(self.outcomes) == len(answer.calls)


def take(toolbox: ToolBox, answer: Answer) -> Taken:
    """Look for the result. An answer that calls other tools first is no wrong one."""
    if not toolbox.result_tool:
        return Taken()
    given = {place: one.input for place, one in enumerate(answer.calls) if one.tool == toolbox.result_tool}
    if answer.calls and not given:
        return Taken()
    outcomes: dict[int, Outcome] = {}
    delivered, result, problems = False, None, list[str]()
    for place, value in given.items() if given else ((-1, answer.text),):
        if delivered:
            outcomes[place] = ONE_IS_ENOUGH
            continue
        try:
            if answer.finish == "length":
                raise WrongCall(CUT)
            if place < 0 and not answer.text.strip():
                raise WrongCall(f"The answer was empty. Call {toolbox.result_tool} with the result.")
            result, delivered = plain_json(toolbox.result(value)), True
            outcomes[place] = TAKEN
        except (WrongCall, ValueError) as problem:
            problems.append(str(problem))
            outcomes[place] = failed("RESULT_DOES_NOT_FIT", str(problem))
    outcomes.pop(-1, None)
    return Taken(outcomes, delivered, result, "" if delivered else problems[0])


def tell(hands: Hands, taken: Taken) -> None:
    """What came of it. Without a call that could be told, the model reads why in a row of its own, if it is asked again."""
    turn, at = hands.turn, hands.process.clock.now()
    if taken.delivered:
        hands.give(ResultDelivered(turn.id, turn.step, at), Bodies(result=taken.result))
    elif taken.problem:
        again = turn.misfits + 1 < RESULT_TRIES
        row = hands.process.layer.feedback_row(taken.problem) if again and not taken.outcomes else b""
        hands.give(ResultRefused(turn.id, turn.step, at), answer=row)
