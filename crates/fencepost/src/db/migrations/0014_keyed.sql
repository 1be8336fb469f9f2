-- `keyed`: the fleet had a key once. From then on a server asks for one, also after the last was revoked or pruned.
alter table fleet add column keyed integer not null default 0;
update fleet set keyed = 1 where exists (select 1 from access_key);
