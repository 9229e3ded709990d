"""Everything that speaks vLLM: engines in pods of their own (`serve`) and the trainer's end of them
(`fleet`), engines in the training processes or beside them (`colocated`), and engines that follow a run from
outside (`follow`).

Here stands what they share: arguments, environment, model class, sampling, and the routes of a server. No
engine is started here.
"""
