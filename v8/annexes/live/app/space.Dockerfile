FROM python:{python}-slim
RUN useradd --create-home --uid 1000 user
USER user
WORKDIR /home/user/app
ENV PYTHONUNBUFFERED=1 PATH=/home/user/.local/bin:$PATH
COPY --chown=user requirements.txt .
RUN pip install --no-cache-dir --user --requirement requirements.txt
COPY --chown=user . .
EXPOSE {port}
# Whoever can see the Space may read the page, unless its secrets hold a V8_APP_TOKEN.
CMD ["python", "-m", "v8", "app", "--repo", "{repo}", "--source", "{source}", "--host", "0.0.0.0", "--no-token", "--port", "{port}"]
