-- The schema's version beside what every transaction reads first, so that a fence that is older than the schema
-- notices in time. Whoever applies a later migration writes its number here.
alter table fleet add column schema_version integer not null default 0;
