/* A shared object that is no backend: it exports another name. */
int spark_comm_no_backend;
