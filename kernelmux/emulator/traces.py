"""What `emulator.trace` collects, for programs that print or draw it.

`Trace` holds a `LaunchTrace` for each launch, that `LineCounts` for each source line, and
those a `Traffic` for each kind of access.
`readings` and `excess` say in sentences what keeps a launch from the least traffic; `write_picture` draws launches.
"""

from kernelmux.emulator.tracing.collector import LaunchTrace, LineCounts, Trace
from kernelmux.emulator.tracing.drawing.page import write_picture
from kernelmux.emulator.tracing.drawing.section import OCCUPIED
from kernelmux.emulator.tracing.reading import EXCESS, FINE, excess, readings
from kernelmux.emulator.tracing.traffic import Traffic

__all__ = [
    "EXCESS",
    "FINE",
    "OCCUPIED",
    "LaunchTrace",
    "LineCounts",
    "Trace",
    "Traffic",
    "excess",
    "readings",
    "write_picture",
]
