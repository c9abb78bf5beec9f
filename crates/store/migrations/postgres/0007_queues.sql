-- A new version of a row gets an entry in every index of its table. What a job is never changes, so its queue is kept with that.
ALTER TABLE job_specs ADD COLUMN queue text NOT NULL DEFAULT '';
UPDATE job_specs SET queue = jobs.queue FROM jobs WHERE jobs.id = job_specs.id;
ALTER TABLE job_specs ALTER COLUMN queue DROP DEFAULT;
CREATE INDEX job_specs_queue ON job_specs (queue, id);
DROP INDEX jobs_queue;
