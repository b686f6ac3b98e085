"""What a person looks at: figures, card blocks, transcripts, tables. Data in, pictures out.

No step's logic stands here and nothing of Metaflow: a flow turns `blocks.Block` into its cards.
"""
