/* Types of C++ that nccl.h includes and does not use in C. */
