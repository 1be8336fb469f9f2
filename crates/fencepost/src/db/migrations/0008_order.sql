-- The log's order is the order of what happened. On PostgreSQL that is (ord, id), `ord` being the newest transaction
-- that was over when the event was written, or its own if that is newer. A transaction may have taken its number
-- long before it wrote; then its number alone would put a claim before the push of what it claims. Later events of a
-- resource are written under its lock, when the earlier ones are committed, so their `ord` is never lower.
-- `xact`: the transaction that wrote it, by which a node knows whether it has seen it; of older events nobody asks.
alter table event rename column xact to ord;
alter table event add column xact integer;
/*pg
alter table event alter column ord set default
  greatest(pg_current_xact_id()::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1);
alter table event alter column xact set default (pg_current_xact_id()::text::bigint);
create index event_xact on event(xact, id);
*/
