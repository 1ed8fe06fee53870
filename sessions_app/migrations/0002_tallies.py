from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [('sessions_app', '0001_initial')]

    operations = [
        migrations.CreateModel(
            name='Tally',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=40)),
                ('label', models.CharField(max_length=80)),
                ('value', models.FloatField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('name', 'label'), name='one_tally')],
            },
        ),
        migrations.AddField(
            model_name='installation',
            name='marked_run',
            field=models.BigIntegerField(editable=False, null=True),
        ),
    ]
