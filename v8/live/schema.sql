-- The tables of a ledger, see v8/live/ledger.py, which adds the triggers that let nothing be changed.
-- SQLite keeps each statement with its spaces, and a file with other ones is refused: no letter may move.

CREATE TABLE tracks (
        id INTEGER PRIMARY KEY,
        place TEXT NOT NULL,
        series TEXT NOT NULL,
        UNIQUE (place, series)
    );

CREATE TABLE issuers (
        id INTEGER PRIMARY KEY,
        track INTEGER NOT NULL REFERENCES tracks (id),
        about TEXT NOT NULL,
        UNIQUE (track, about)
    );

CREATE TABLE forecasts (
        id INTEGER PRIMARY KEY,
        track INTEGER NOT NULL REFERENCES tracks (id),
        issued_for_s INTEGER NOT NULL,
        written_s INTEGER NOT NULL,
        issuer INTEGER NOT NULL REFERENCES issuers (id),
        candles_digest TEXT NOT NULL,
        forecasts BLOB NOT NULL,
        UNIQUE (track, issued_for_s)
    );

CREATE TABLE scores (
        forecast INTEGER PRIMARY KEY REFERENCES forecasts (id),
        scored_s INTEGER NOT NULL,
        truth_digest TEXT,
        losses BLOB,
        truth BLOB
    );

-- The live record reads times of all forecasts, and none of what they say.
CREATE INDEX times ON forecasts (track, issued_for_s, written_s, issuer);
