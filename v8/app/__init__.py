"""The page and the JSON API: what the models say of the present, from one small server.

The server is Starlette on uvicorn, an extra of this distribution (`app`). Tried beside Gradio, each in an
environment of its own, Python 3.11, 2 cores, 2026-11-21:

    starlette 1.10 + uvicorn 0.54    installed in 1.1 s,    5 MB in 7 packages,  imported in 0.09 s
    gradio 6.31                      installed in 18.6 s, 341 MB in 52 packages, imported in 2.2 s

Five of the seven come with huggingface_hub anyway. A page of Gradio takes its fonts from another host and
brings its own look, its own API and its own answers to errors; a Hugging Face Space runs any server from a
Dockerfile. So one page, one API, no script but our own.
"""
