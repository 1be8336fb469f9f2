-- `waiting_at`: since when the run waits for a person; null if it does not. Its claims stay its own meanwhile.
alter table run add column waiting_at integer;
