pub struct Postgres;
