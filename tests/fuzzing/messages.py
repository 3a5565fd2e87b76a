"""Messages of other packages that quote a secret, and what v8 makes of them."""

from __future__ import annotations

import json
import string
from random import Random
from typing import Any, Final

from v8.base.errors import DataError, shown
from v8.base.wording import for_file, for_terminal

OPTIONS: Final = ("apiKey", "secret", "password", "token", "access_token", "privateKey", "X-Amz-Signature")
QUERY_KEYS: Final = (*OPTIONS, "sig", "key", "auth", "api_key", "signature")
HEADERS: Final = (
    "Authorization: Bearer {}",
    "{{'Authorization': 'Basic {}'}}",
    "X-MBX-APIKEY: {}",
    "OK-ACCESS-SIGN: {}",
    "Cookie: lang=en; session={}; path=/",
    "api-key: {}",
)
HOOKS: Final = (
    "https://api.telegram.org/bot123456789:",
    "https://discord.com/api/webhooks/1/",
    "https://hooks.slack.com/services/T0/B0/",
    "https://chat.example/hooks/",
    "hf_",
    "ghp_",
)
LEAST: Final = 12  # letters of a secret that say too much of it
AROUND: Final = (
    "{}",
    "ConnectionError: {} failed with too many 503 responses",
    "Max retries exceeded with url: {} (Caused by NewConnectionError('[Errno 111]'))",
    "first line\n\tsecond line \x1b[31m{}\r\nthird",
    "binance {} 401 Unauthorized",
)


def message_with_secret(random: Random) -> tuple[str, str]:
    """Return a message, and the secret that it quotes in one or several of the usual ways."""
    letters = string.ascii_letters + string.digits
    secret = "".join(random.choices(letters, k=random.randrange(24, 48))) + random.choice(string.digits)
    texts = random.sample(_quotations(random, secret), k=random.choice((1, 1, 2, 3)))
    return random.choice(AROUND).format(random.choice((" ", ", ", "\n")).join(texts)), secret


def _quotations(random: Random, secret: str) -> list[str]:
    address = random.choice(("https://host:8080/a/b", "host/a", "https://[::1]/"))
    options = {random.choice(OPTIONS): secret, "timeout": 5}
    query = f"{random.choice('?&')}{random.choice(QUERY_KEYS)}={secret}"
    user = random.choice(("me", "", "a.b%40c"))
    return [
        f"{random.choice(('http', 'postgresql', 'redis'))}://{user}:{secret}@host/x",
        f"{address}?page=1&{random.choice(QUERY_KEYS)}={secret}&limit=5",
        f"/api/v3/account{query}",
        random.choice(HEADERS).format(secret),
        f"{random.choice(HOOKS)}{secret}",
        json.dumps(options),
        repr(options),
        json.dumps(json.dumps(options)),
        f"{random.choice(OPTIONS)}={secret}",
        f"Exchange({random.choice(OPTIONS)}={secret!r})",
    ]


def check_message(text: str, secret: str) -> None:
    """Pass a message through all that v8 writes; none of it may hold the secret."""
    error: Any = DataError(where=text, rule="must answer", got=text, fix="Try again")
    for cut in (shown(text, 300), for_terminal(text), for_file(text), str(error)):
        if any(secret[start : start + LEAST] in cut for start in range(len(secret) - LEAST)):
            raise AssertionError(f"the secret {secret} in {cut!r}")
