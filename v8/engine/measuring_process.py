"""The process that measures; `v8.engine.children` starts it.

    echo '{"profile": {...}, "measurements": [{"measure": "matmul", "seconds": 2}]}' \
        | python -m v8.engine.measuring_process

It starts TensorFlow as all of ours do, which must be prepared before `v8.engine.measuring` imports it.
"""

from __future__ import annotations

from v8.engine.light_start import light_start

if __name__ == "__main__":
    with light_start():
        from v8.engine.measuring import main
    main()
