"""A second opinion on anybody's run: what other libraries wrote, read as processes, and back.

```python
from tightrope import account
from tightrope.interop import read
account(read("opacus_state.json").process).epsilon(delta=1e-5)
```
"""

from tightrope.interop.export import to_dp_event
from tightrope.interop.files import read
from tightrope.interop.reading import Reading
from tightrope.interop.setting import Setting

__all__ = ["read", "Reading", "Setting", "to_dp_event"]
