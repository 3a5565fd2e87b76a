"""The process that measures; `v8.machine.measurements` starts it.

    echo '{"profile": {...}, "measurements": [{"measure": "matmul", "seconds": 2}]}' \
        | python -m v8.runs.measuring_process

It starts TensorFlow as all of ours do, which must be prepared before `v8.runs.measuring` imports it.
"""

from v8.machine.starting import light_start

if __name__ == "__main__":
    with light_start():
        from v8.runs.measuring import main
    main()
