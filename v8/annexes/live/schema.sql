-- The tables of a ledger, see v8/annexes/live/ledger.py, and the triggers that let nothing be changed.
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
        checksum INTEGER NOT NULL,
        forecasts BLOB NOT NULL,
        UNIQUE (track, issued_for_s)
    );

CREATE TABLE scores (
        forecast INTEGER PRIMARY KEY REFERENCES forecasts (id),
        scored_s INTEGER NOT NULL,
        actual_digest TEXT,
        checksum INTEGER NOT NULL,
        losses BLOB,
        actual BLOB
    );

-- The live record reads times of all forecasts, and none of what they say.
CREATE INDEX times ON forecasts (track, issued_for_s, written_s, issuer);

-- By what a row is known stands in v8/annexes/live/ledger.py, too. INSERT OR REPLACE would remove the row that has it, past a
-- trigger of DELETE.
CREATE TRIGGER tracks_stay BEFORE DELETE ON tracks BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER tracks_stand BEFORE UPDATE ON tracks BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER tracks_once BEFORE INSERT ON tracks WHEN EXISTS (SELECT 1 FROM tracks WHERE place = NEW.place AND series = NEW.series) BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER issuers_stay BEFORE DELETE ON issuers BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER issuers_stand BEFORE UPDATE ON issuers BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER issuers_once BEFORE INSERT ON issuers WHEN EXISTS (SELECT 1 FROM issuers WHERE track = NEW.track AND about = NEW.about) BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER forecasts_stay BEFORE DELETE ON forecasts BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER forecasts_stand BEFORE UPDATE ON forecasts BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER forecasts_once BEFORE INSERT ON forecasts WHEN EXISTS (SELECT 1 FROM forecasts WHERE track = NEW.track AND issued_for_s = NEW.issued_for_s) BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER scores_stay BEFORE DELETE ON scores BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER scores_stand BEFORE UPDATE ON scores BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
CREATE TRIGGER scores_once BEFORE INSERT ON scores WHEN EXISTS (SELECT 1 FROM scores WHERE forecast = NEW.forecast) BEGIN SELECT RAISE(ABORT, 'a ledger is only added to'); END;
