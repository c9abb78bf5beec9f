-- An edge goes with the job that is waited for; nobody looks for one by the job that waits.
DROP INDEX edges_dependent;
