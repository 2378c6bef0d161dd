"""For spark-submit, which wants a file: what follows it is what would follow `triage`.

spark-submit --master yarn spark_submit.py pipeline run hdfs:///traces --out hdfs:///tables
"""

from triagemq.cli import main

if __name__ == "__main__":
    main()
