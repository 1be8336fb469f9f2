-- Where this fleet lives on PostgreSQL: the cluster and the schema's oid, by which a dump that was restored elsewhere is
-- noticed. (Null on SQLite, and `system` also where it may not be read.)
-- `epoch`: how often the fleet was said to be restored. Transactions are numbered anew then, so the events of each
-- earlier epoch stand 2^48 lower; a position says of which epoch it is.
alter table fleet add column system text;
alter table fleet add column schema_oid integer;
alter table fleet add column epoch integer not null default 0;
/*pg
update fleet set system = nullif(current_setting('fencepost.system', true), ''),
  schema_oid = quote_ident(current_schema())::regnamespace::oid::bigint;
*/
