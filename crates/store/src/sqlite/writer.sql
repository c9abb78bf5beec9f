-- The connection that writes. The page size holds for new files only: rows of some hundred bytes that come and change
-- in order fill pages well, but a small commit writes every page that it touches whole.
PRAGMA page_size = 4096;
PRAGMA journal_mode = WAL;
-- What was committed is on disk; where the ledger has it, see commits.rs, that can wait.
PRAGMA synchronous = FULL;
-- Checkpoints are made beside the commits, see checkpoint.rs.
PRAGMA wal_autocheckpoint = 0;
PRAGMA journal_size_limit = 67108864;
-- In KiB. Nothing is mapped into memory: an I/O error there would kill the process instead of failing the call.
PRAGMA cache_size = -65536;
PRAGMA temp_store = MEMORY;
