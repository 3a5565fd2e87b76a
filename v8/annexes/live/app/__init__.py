"""The page of the present and its JSON API: current forecasts of the models, from one small server.

The server is Starlette on uvicorn, an extra of this distribution (`app`). It was compared with Gradio, each
in an environment of its own, Python 3.11, 2 cores, 2026-11-21:

    starlette 1.10 + uvicorn 0.54    installed in 1.1 s,    5 MB in 7 packages,  imported in 0.09 s
    gradio 6.31                      installed in 18.6 s, 341 MB in 52 packages, imported in 2.2 s

huggingface_hub needs five of the seven packages anyway. A page of Gradio loads its fonts from another host
and has its own look, its own API and its own error answers; a Hugging Face Space runs any server from a
Dockerfile. So there is one page, one API, and no script but our own.
"""
