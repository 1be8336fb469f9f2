-- What one trigger gave comes back as one trigger if its run is lost.

-- `batch`: which messages a poll claimed together, null if it was one or no poll: twice the key of the run, plus one for the
-- second half of them. `lapsed` counts from now on how often in a row the message's claim was lost. After the first time
-- both halves are handed out together again, after that each by itself.
alter table message add column batch integer;
create index message_batch on message(batch) where ready = 1 and batch is not null;
