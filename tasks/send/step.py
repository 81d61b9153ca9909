"""The step ``send``."""

from config import PipelineConfig, SendMode
from tasks.send import STATE, checks
from tasks.send.send import run
from tasks.shared.step import Reads, Step


def reads(config: PipelineConfig) -> Reads:
    """A direct load takes resources, whatever was made of them since; the other modes take the files made last."""
    direct = config.services.send.send_as is SendMode.DIRECT_RESOURCE_LOAD
    return Reads.RESOURCES if direct else Reads.LATEST


STEP = Step(
    name="send",
    run=run,
    reads=reads,
    folders=(STATE,),
    services=lambda config: [checks.service(config)],
    space=checks.space,
)
